"""What every figure of the page is made of: a title, series, a picture and a caption."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fjord.core.width import Width
from fjord.report import numbers
from fjord.report.figures import AxesLabels, CurveStyle, PlotSeries, group_styles
from fjord.report.groups import ReportRun, RunGroup, runs_of
from fjord.report.numbers import RunValues, SeedStat

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class ReportCard:
    """One figure of the page."""

    name: str
    title: str
    svg: str
    caption: str
    series: tuple[PlotSeries, ...]


@dataclass(frozen=True)
class CardScope:
    """The groups that a page compares, and the score it compares them by."""

    groups: Sequence[RunGroup]
    metric: str

    @property
    def runs(self) -> list[ReportRun]:
        """The runs of all groups."""
        return runs_of(self.groups)

    @property
    def metric_title(self) -> str:
        """The metric at the start of a title."""
        return self.metric.capitalize()

    @property
    def mean_name(self) -> str:
        """How scores of clients are averaged."""
        if self.metric == "accuracy":
            return "Mean"
        return "Geometric mean"

    def score_axes(self, x: str, *, whole: bool = True) -> AxesLabels:
        """Return axes of which y is the score."""
        if self.metric == "accuracy":
            return AxesLabels(x, "accuracy", format_percent, whole=whole)
        y = f"{self.metric} (lower is better)"
        return AxesLabels(x, y, format_si, whole=whole, may_be_log=True)

    def spread_note(self, mark: str) -> str:
        """Say what bars or bands mean, if there are any."""
        for group in self.groups:
            if len(group.runs) > 1:
                return f"; mean over seeds, {mark}: ± one standard deviation"
        return ""

    def group_series(self, values: RunValues, *, name_unserved: bool = False) -> list[PlotSeries]:
        """Return one series for each group, which may be empty.

        `name_unserved` adds to a label how many clients are not in the numbers: a mean over the
        others flatters a method.
        """
        styles = group_styles(len(self.groups))
        series = []
        for group, style in zip(self.groups, styles, strict=True):
            label = group.name
            if name_unserved:
                label += unserved_note(group)
            points = numbers.over_runs(group, values)
            series.append(PlotSeries(label, style, points))
        return series


def labelled_series(
    points: dict[str, dict[Any, SeedStat]],
    styles: Sequence[CurveStyle],
) -> tuple[PlotSeries, ...]:
    """Return the series that have points, by their labels."""
    series = []
    for label, style in zip(points, styles, strict=True):
        series.append(PlotSeries(label, style, points[label]))
    return non_empty(series)


def non_empty(series: Sequence[PlotSeries]) -> tuple[PlotSeries, ...]:
    """Return the series that have something to show; none if not one has points."""
    has_points = False
    shown = []
    for one in series:
        if one.points:
            has_points = True
            shown.append(one)
        elif one.absent:
            shown.append(one)
    if not has_points:
        return ()
    return tuple(shown)


def unserved_note(group: RunGroup) -> str:
    """Say how many clients of a group have no model they can carry, if any."""
    unserved_counts = []
    client_counts = []
    for run in group.runs:
        if run.clients:
            unserved_by_tier = numbers.without_model(run)
            unserved_counts.append(sum(unserved_by_tier.values()))
            client_counts.append(len(run.clients))
    unserved = numbers.seed_stat(unserved_counts)
    clients = numbers.seed_stat(client_counts)
    if not unserved or not clients:
        return ""
    if unserved.mean == 0:
        return ""
    return f": {unserved.mean:.4g} of {clients.mean:.4g} clients have no model they can carry"


def width_ticks(widths: Iterable[Width]) -> dict[Any, str]:
    """Return the names of widths, in their order, each once."""
    distinct = set(widths)
    return {width: str(width) for width in sorted(distinct)}


def point_widths(series: Iterable[PlotSeries]) -> list[Width]:
    """Return the widths at which series have points."""
    widths: list[Width] = []
    for one in series:
        widths.extend(one.points)
    return widths


def format_percent(value: float) -> str:
    """Return a share in per cent.

    >>> format_percent(0.5)
    '50%'
    """
    return f"{100 * value:.3g}%"


def format_three_digits(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.3g}"


def format_si(value: float) -> str:
    """Return a number with three digits and a prefix.

    >>> format_si(2_500_000), format_si(12)
    ('2.5 M', '12')
    """
    size = abs(value)
    for limit, prefix in PREFIXES:
        if limit <= size < 1000 * limit:
            scaled = value / limit
            return f"{scaled:.3g} {prefix}"
    return f"{value:.3g}"
