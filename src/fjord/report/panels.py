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
        figure = Figure(figsize=(4.6 * columns, 3.7 * rows + 0.5), layout="constrained")
        all_axes = figure.subplots(rows, columns, squeeze=False).flatten()
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
    handles = [_legend_handle(axes, one) for one in panel.series]
    labels = [one.label for one in panel.series]
    axes.legend(handles, labels, fontsize=7.5, framealpha=0.85)


def _legend_handle(axes: Any, one: PlotSeries) -> Any:
    """Return an empty line that looks like a series."""
    style = one.style
    look = {"color": style.colour, "marker": style.marker, "linestyle": style.dash}
    (line,) = axes.plot([], [], markersize=4, **look)
    return line
