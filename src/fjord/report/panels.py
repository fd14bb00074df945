"""Draw several panels side by side, as a paper does, into one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.report.figures import MISSING, AxesLabels, PlotSeries, plot_lines

LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}
PER_ROW = 3


@dataclass(frozen=True)
class FigurePanel:
    """One pair of axes."""

    title: str
    series: tuple[PlotSeries, ...]
    axes: AxesLabels
    ticks: Mapping[Any, str] | None = None


def draw_panels(panels: Sequence[FigurePanel], title: str, origin: str, path: Path) -> Path:
    """Draw panels three in a row, with a legend in each and the origin of the numbers below."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"the figure {MISSING}") from None
    columns = min(PER_ROW, len(panels))
    rows = -(-len(panels) // PER_ROW)
    with rc_context(LOOK):
        size = (4.6 * columns, 3.7 * rows + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        all_axes = grid.flatten()
        for axes, panel in zip(all_axes, panels, strict=False):
            _fill_axes(axes, panel)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        figure.suptitle(title, fontsize=11)
        figure.supxlabel(origin, fontsize=7, color="grey")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Software": None})
    return path


def _fill_axes(axes: Any, panel: FigurePanel) -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    plot_lines(axes, panel.series, panel.axes, panel.ticks)
    axes.set_title(panel.title, fontsize=10)
    handles = []
    labels = []
    for one in panel.series:
        handles.append(_legend_handle(axes, one))
        labels.append(one.label)
    axes.legend(handles, labels, fontsize=7.5, framealpha=0.85)


def _legend_handle(axes: Any, one: PlotSeries) -> Any:
    """Return an empty line that looks like a series."""
    style = one.style
    lines = axes.plot(
        [],
        [],
        markersize=4,
        color=style.colour,
        marker=style.marker,
        linestyle=style.dash,
    )
    return lines[0]
