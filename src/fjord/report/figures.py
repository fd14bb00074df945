"""Draws lines and bars as small SVG pictures that are legible on a phone and can stand inside an HTML page."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.report.numbers import SeedStat

# Okabe and Ito's palette without its yellow and its black: told apart by colour-blind people, and on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
SIZE = (4.1, 2.9)
"""Inches; text of 9 points then has about 10 pixels on a phone and 12 on a desk."""


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
    shown: Callable[[float], str]
    """Writes a value of the y axis."""
    threshold: float | None = None
    whole: bool = True
    """Whether the x axis counts something, such as rounds."""
    may_be_log: bool = False
    """Whether lines that span decades are drawn on a logarithmic scale."""


def group_styles(count: int) -> list[CurveStyle]:
    """Return a style for each group; beyond seven the dash changes."""
    return [CurveStyle(COLOURS[i % 7], MARKERS[i % 7], DASHES[i // 7 % 4]) for i in range(count)]


def width_styles(count: int) -> list[CurveStyle]:
    """Return a style for each width: from pale to dark, as widths are ordered."""
    try:
        from matplotlib import colormaps
        from matplotlib.colors import to_hex
    except ImportError:
        raise UserError(MISSING) from None
    # The pale end of the scale does not stand out on white.
    places = [0.78 * (1 - i / max(1, count - 1)) for i in range(count)]
    return [
        CurveStyle(to_hex(colormaps["viridis"](place)), MARKERS[i % 7])
        for i, place in enumerate(places)
    ]


MISSING = f"the page needs matplotlib: {install_hint('plots')}"


@contextmanager
def _panel(name: str, into: list[str]) -> Iterator[Any]:
    """Hand out empty axes; add them to `into` as SVG at the end."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(MISSING) from None
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,  # a dollar in a recipe's name is a dollar
        "font.family": "DejaVu Sans",  # wide: whatever font the reader has will fit in
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#777777",
        "hatch.linewidth": 0.8,
    }
    # The context is matplotlib's own and passes: settings of whoever calls stay as they are.
    with rc_context(settings):
        figure = Figure(figsize=SIZE, layout="constrained")
        panel = figure.subplots()
        panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panel.set_axisbelow(True)
        yield panel
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
        into.append(_inline(text.getvalue(), name))


def _inline(svg: str, name: str) -> str:
    """Return a picture that can stand in a page beside others: own ids, no size of its own, no addresses."""
    svg = svg[svg.index("<svg") :]
    head, _, body = svg.partition(">")
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
    """Draw lines with a band, or with bars where ticks name the few places there are, of one deviation."""
    drawn: list[str] = []
    with _panel(name, drawn) as panel:
        plot_lines(panel, series, axes, ticks)
    return drawn[0]


def plot_lines(
    panel: Any,
    series: Sequence[PlotSeries],
    axes: AxesLabels,
    ticks: Mapping[Any, str] | None = None,
) -> None:
    """Draw lines into matplotlib's axes."""
    for i, one in enumerate(series):
        # Few places: shifted a little so that error bars of different groups do not hide each other.
        shift = (i - (len(series) - 1) / 2) * 0.012 if ticks else 0.0
        _line(panel, one, shift, bars=ticks is not None)
    means = [stat.mean for one in series for stat in one.points.values()]
    if axes.may_be_log and min(means) > 0 and max(means) > 20 * min(means):
        panel.set_yscale("log")
    _finish(panel, axes)
    if ticks:
        panel.set_xticks([float(place) for place in ticks], ticks.values())
        if len(series) == 1:
            _write_values(panel, series[0], axes)
    else:
        panel.xaxis.get_major_locator().set_params(integer=axes.whole, nbins=6)


def _line(panel: Any, one: PlotSeries, shift: float, *, bars: bool) -> None:
    x = [float(place) + shift for place in one.points]
    mean = [stat.mean for stat in one.points.values()]
    sd = [stat.sd or 0.0 for stat in one.points.values()]
    many = len(x) > 30
    look = {
        "color": one.style.colour,
        "linestyle": one.style.dash,
        "linewidth": 1.6,
        "markersize": 4.5,
    }
    panel.plot(x, mean, marker=None if many else one.style.marker, **look)
    if bars and any(sd):
        panel.errorbar(
            x, mean, sd, fmt="none", ecolor=one.style.colour, elinewidth=1.1, capsize=2.5
        )
    elif any(sd):
        low, high = zip(*((m - s, m + s) for m, s in zip(mean, sd, strict=True)), strict=True)
        panel.fill_between(x, low, high, color=one.style.colour, alpha=0.18, linewidth=0)


def _write_values(panel: Any, one: PlotSeries, axes: AxesLabels) -> None:
    for place, stat in one.points.items():
        spot = (float(place), stat.mean + (stat.sd or 0))
        panel.annotate(axes.shown(stat.mean), spot, (0, 6), textcoords="offset points", ha="center")
    panel.margins(x=0.1, y=0.15)


def _finish(panel: Any, axes: AxesLabels) -> None:
    from matplotlib.ticker import FuncFormatter

    if panel.get_yscale() == "linear":
        panel.yaxis.get_major_locator().set_params(nbins=6)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: axes.shown(value)))
    panel.set_xlabel(axes.x)
    panel.set_ylabel(axes.y)
    if axes.threshold is not None:
        panel.axhline(axes.threshold, color="#333333", linewidth=1, linestyle=(0, (4, 3)))


def draw_bars(
    name: str, series: Sequence[PlotSeries], axes: AxesLabels, places: Mapping[Any, str]
) -> str:
    """Draw bars side by side at each place, with one deviation."""
    drawn: list[str] = []
    with _panel(name, drawn) as panel:
        slot = 0.82 / len(series)
        for i, one in enumerate(series):
            centres = {
                key: at + (i - (len(series) - 1) / 2) * slot for at, key in enumerate(places)
            }
            _bars(panel, one, centres, slot * 0.9)
            if len(series) == 1:
                for key, stat in one.points.items():
                    spot = (centres[key], stat.mean + (stat.sd or 0))
                    panel.annotate(
                        axes.shown(stat.mean), spot, (0, 3), textcoords="offset points", ha="center"
                    )
        panel.set_xticks(range(len(places)), places.values())
        panel.set_xlim(-0.6, len(places) - 0.4)
        panel.margins(y=0.1)
        _finish(panel, axes)
        panel.set_ylim(bottom=0)
    return drawn[0]


def _bars(panel: Any, one: PlotSeries, centres: Mapping[Any, float], width: float) -> None:
    colour = one.style.colour
    for key, stat in one.points.items():
        hatch = "////" if key in one.flagged else None
        look = {"width": width, "hatch": hatch, "edgecolor": "white" if hatch else "none"}
        panel.bar(centres[key], stat.mean, color=colour, alpha=0.45 if one.inner else 1.0, **look)
        if key in one.inner:
            panel.bar(centres[key], one.inner[key], color=colour, width=width)
        if stat.sd:
            panel.errorbar(
                centres[key],
                stat.mean,
                stat.sd,
                fmt="none",
                ecolor="#222222",
                elinewidth=1,
                capsize=2,
            )
    for key in one.absent:
        # At the foot of the panel, in its own height: the values there may be of any size.
        panel.plot(
            centres[key],
            0.03,
            "x",
            color=colour,
            markersize=5,
            transform=panel.get_xaxis_transform(),
        )
