"""Draws several panels side by side, as a paper does, into one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.report.figures import MISSING, AxesLabels, PlotSeries, plot_lines


@dataclass(frozen=True)
class FigurePanel:
    """One pair of axes."""

    title: str
    series: tuple[PlotSeries, ...]
    axes: AxesLabels
    ticks: Mapping[Any, str] | None = None


def draw_panels(panels: Sequence[FigurePanel], title: str, origin: str, path: Path) -> Path:
    """Draw panels three in a row, with a legend in each and where it all comes from at the foot."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(MISSING) from None
    across, down = min(3, len(panels)), -(-len(panels) // 3)
    with rc_context(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.parse_math": False,
        }
    ):
        figure = Figure(figsize=(4.6 * across, 3.7 * down + 0.5), layout="constrained")
        places = figure.subplots(down, across, squeeze=False).flatten()
        for place, panel in zip(places, panels, strict=False):
            _fill(place, panel)
        for empty in places[len(panels) :]:
            empty.set_axis_off()
        figure.suptitle(title, fontsize=11)
        figure.supxlabel(origin, fontsize=7, color="grey")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Software": None})
    return path


def _fill(place: Any, panel: FigurePanel) -> None:
    place.grid(axis="y", color="#dddddd", linewidth=0.7)
    place.set_axisbelow(True)
    plot_lines(place, panel.series, panel.axes, panel.ticks)
    place.set_title(panel.title, fontsize=10)
    handles = [_handle(place, one) for one in panel.series]
    place.legend(handles, [one.label for one in panel.series], fontsize=7.5, framealpha=0.85)


def _handle(place: Any, one: PlotSeries) -> Any:
    return place.plot(
        [],
        [],
        color=one.style.colour,
        marker=one.style.marker,
        linestyle=one.style.dash,
        markersize=4,
    )[0]
