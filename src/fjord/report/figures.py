"""Draw lines and bars as small SVG pictures, legible on a phone, to be put into an HTML page."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.report.numbers import SeedStat

# Okabe and Ito's palette without its yellow and its black: colour-blind people can tell these
# apart, and all stand out on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
MAX_MARKERS = 30
"""A line of more points is drawn without markers."""
SIZE = (4.1, 2.9)
"""Inches; text of 9 points then has about 10 pixels on a phone and 12 on a desk."""
LOOK = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a recipe's name is a dollar
    "font.family": "DejaVu Sans",  # wide: whatever font the reader has will fit in
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "hatch.linewidth": 0.8,
}
"""matplotlib's settings for a picture of the page."""
MISSING = f"needs matplotlib: {install_hint('plots')}"


@dataclass(frozen=True)
class CurveStyle:
    """How one series is drawn: colour, marker and dash each tell it apart."""

    colour: str
    marker: str
    dash: str = "-"


@dataclass(frozen=True)
class PlotSeries:
    """One line or one set of bars."""

    label: str
    style: CurveStyle
    points: Mapping[Any, SeedStat]
    inner: Mapping[Any, float] = field(default_factory=dict)
    """The part of each bar that is drawn in full colour; the rest is pale."""
    flagged: frozenset[Any] = frozenset()
    """Bars that are hatched."""
    absent: frozenset[Any] = frozenset()
    """Places where there can be no bar, marked with a cross."""


@dataclass(frozen=True)
class AxesLabels:
    """What the axes say."""

    x: str
    y: str
    format_value: Callable[[float], str]
    """Writes a value of the y axis."""
    threshold: float | None = None
    whole: bool = True
    """Whether the x axis counts something, such as rounds."""
    may_be_log: bool = False
    """Whether lines that span decades are drawn on a logarithmic scale."""


def group_styles(count: int) -> list[CurveStyle]:
    """Return a style for each group; beyond seven the dash changes."""
    styles = []
    for i in range(count):
        colour = COLOURS[i % len(COLOURS)]
        marker = MARKERS[i % len(MARKERS)]
        repeat = i // len(COLOURS)
        dash = DASHES[repeat % len(DASHES)]
        styles.append(CurveStyle(colour, marker, dash))
    return styles


def width_styles(count: int) -> list[CurveStyle]:
    """Return a style for each width: from pale to dark, as widths are ordered."""
    try:
        from matplotlib import colormaps
        from matplotlib.colors import to_hex
    except ImportError:
        raise UserError(f"the page {MISSING}") from None
    scale = colormaps["viridis"]
    steps = max(1, count - 1)
    styles = []
    for i in range(count):
        # The pale end of the scale does not stand out on white.
        place = 0.78 * (1 - i / steps)
        colour = to_hex(scale(place))
        marker = MARKERS[i % len(MARKERS)]
        styles.append(CurveStyle(colour, marker))
    return styles


@contextmanager
def _open_panel(name: str, pictures: list[str]) -> Iterator[Any]:
    """Provide empty axes; append what was drawn to `pictures` as SVG at the end."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"the page {MISSING}") from None
    settings: Any = LOOK | {"svg.hashsalt": name}
    # A context of matplotlib's own: the caller's settings stay as they are.
    with rc_context(settings):
        figure = Figure(figsize=SIZE, layout="constrained")
        panel = figure.subplots()
        panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panel.set_axisbelow(True)
        yield panel
        text = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=no_metadata)
        pictures.append(_inline_svg(text.getvalue(), name))


def _inline_svg(svg: str, name: str) -> str:
    """Return a picture that can stand in a page beside others.

    It has ids of its own, takes the size of its place, and has no web addresses.
    """
    start = svg.index("<svg")
    head, _, body = svg[start:].partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box, "matplotlib writes a viewBox"
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="|url\()#', rf"\1#{name}-", body)
    return f'<svg {box[0]} role="img" aria-labelledby="{name}-title">{body}'


def draw_lines(
    name: str,
    series: Sequence[PlotSeries],
    axes: AxesLabels,
    ticks: Mapping[Any, str] | None = None,
) -> str:
    """Draw lines with a band of one deviation, or with error bars where there are ticks."""
    pictures: list[str] = []
    with _open_panel(name, pictures) as panel:
        plot_lines(panel, series, axes, ticks)
    return pictures[0]


def plot_lines(
    panel: Any,
    series: Sequence[PlotSeries],
    axes: AxesLabels,
    ticks: Mapping[Any, str] | None = None,
) -> None:
    """Draw lines into matplotlib's axes."""
    for i, one in enumerate(series):
        shift = 0.0
        if ticks:
            # Few places: shifted a little so that error bars of different groups do not overlap.
            shift = _series_offset(i, len(series), 0.012)
        _plot_line(panel, one, shift, bars=ticks is not None)
    if axes.may_be_log and _spans_decades(series):
        panel.set_yscale("log")
    _label_axes(panel, axes)
    if not ticks:
        locator = panel.xaxis.get_major_locator()
        locator.set_params(integer=axes.whole, nbins=6)
        return
    places = [float(place) for place in ticks]
    panel.set_xticks(places, ticks.values())
    if len(series) == 1:
        for place, stat in series[0].points.items():
            _write_value(panel, axes, float(place), stat, 6)
        panel.margins(x=0.1, y=0.15)


def _series_offset(index: int, count: int, step: float) -> float:
    """Return how far one of some series is shifted, so that all stand around their place."""
    middle = (count - 1) / 2
    return (index - middle) * step


def _spans_decades(series: Sequence[PlotSeries]) -> bool:
    means = []
    for one in series:
        for stat in one.points.values():
            means.append(stat.mean)
    lowest = min(means)
    highest = max(means)
    return lowest > 0 and highest > 20 * lowest


def _plot_line(panel: Any, one: PlotSeries, shift: float, *, bars: bool) -> None:
    x = []
    means = []
    deviations = []
    low = []
    high = []
    for place, stat in one.points.items():
        deviation = stat.sd or 0.0
        x.append(float(place) + shift)
        means.append(stat.mean)
        deviations.append(deviation)
        low.append(stat.mean - deviation)
        high.append(stat.mean + deviation)
    marker = None
    if len(x) <= MAX_MARKERS:
        marker = one.style.marker
    colour = one.style.colour
    panel.plot(
        x,
        means,
        marker=marker,
        color=colour,
        linestyle=one.style.dash,
        linewidth=1.6,
        markersize=4.5,
    )
    if not any(deviations):
        return
    if bars:
        panel.errorbar(
            x,
            means,
            deviations,
            fmt="none",
            ecolor=colour,
            elinewidth=1.1,
            capsize=2.5,
        )
    else:
        panel.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _write_value(panel: Any, axes: AxesLabels, x: float, stat: SeedStat, above: int) -> None:
    """Write a mean some points above its error bar."""
    panel.annotate(
        axes.format_value(stat.mean),
        xy=(x, stat.top),
        xytext=(0, above),
        textcoords="offset points",
        ha="center",
    )


def _label_axes(panel: Any, axes: AxesLabels) -> None:
    from matplotlib.ticker import FuncFormatter

    if panel.get_yscale() == "linear":
        locator = panel.yaxis.get_major_locator()
        locator.set_params(nbins=6)
    formatter = FuncFormatter(lambda value, _: axes.format_value(value))
    panel.yaxis.set_major_formatter(formatter)
    panel.set_xlabel(axes.x)
    panel.set_ylabel(axes.y)
    if axes.threshold is not None:
        panel.axhline(axes.threshold, color="#333333", linewidth=1, linestyle=(0, (4, 3)))


def draw_bars(
    name: str, series: Sequence[PlotSeries], axes: AxesLabels, places: Mapping[Any, str]
) -> str:
    """Draw bars side by side at each place, with error bars of one deviation."""
    pictures: list[str] = []
    slot = 0.82 / len(series)
    with _open_panel(name, pictures) as panel:
        for i, one in enumerate(series):
            shift = _series_offset(i, len(series), slot)
            centres = {}
            for place, key in enumerate(places):
                centres[key] = place + shift
            _plot_bars(panel, one, centres, slot * 0.9)
            _plot_crosses(panel, one, centres)
            if len(series) == 1:
                for key, stat in one.points.items():
                    _write_value(panel, axes, centres[key], stat, 3)
        positions = range(len(places))
        panel.set_xticks(positions, places.values())
        panel.set_xlim(-0.6, len(places) - 0.4)
        panel.margins(y=0.1)
        _label_axes(panel, axes)
        panel.set_ylim(bottom=0)
    return pictures[0]


def _plot_bars(panel: Any, one: PlotSeries, centres: Mapping[Any, float], width: float) -> None:
    colour = one.style.colour
    opacity = 1.0
    if one.inner:
        opacity = 0.45
    for key, stat in one.points.items():
        x = centres[key]
        look: dict[str, Any] = {"hatch": None, "edgecolor": "none"}
        if key in one.flagged:
            look = {"hatch": "////", "edgecolor": "white"}
        panel.bar(x, stat.mean, color=colour, alpha=opacity, width=width, **look)
        if key in one.inner:
            panel.bar(x, one.inner[key], color=colour, width=width)
        if stat.sd:
            panel.errorbar(
                x,
                stat.mean,
                stat.sd,
                fmt="none",
                ecolor="#222222",
                elinewidth=1,
                capsize=2,
            )


def _plot_crosses(panel: Any, one: PlotSeries, centres: Mapping[Any, float]) -> None:
    """Mark where there can be no bar."""
    # At the foot of the panel, in its own height: the values there may be of any size.
    foot = panel.get_xaxis_transform()
    for key in one.absent:
        panel.plot(
            centres[key],
            0.03,
            "x",
            color=one.style.colour,
            markersize=5,
            transform=foot,
        )
