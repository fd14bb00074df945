"""Figures of costs: scores against time and bytes, costs of a client, and clients per shell."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fjord.core.width import Width
from fjord.report import numbers
from fjord.report.cards import (
    CardScope,
    ReportCard,
    format_si,
    format_three_digits,
    labelled_series,
    non_empty,
    point_widths,
    width_ticks,
)
from fjord.report.cost_to_score import COST_KINDS, cost_unit, format_cost, score_by_cost
from fjord.report.figures import (
    AxesLabels,
    PlotSeries,
    draw_bars,
    draw_lines,
    group_styles,
    width_styles,
)
from fjord.report.groups import ReportRun, RunGroup
from fjord.report.numbers import SeedStat

STARVING = (
    "A shell is the units between one width and the next smaller one. It starves when fewer than "
    "one client trains it per round on average, or when nobody does in more than half of the "
    "rounds."
)
TIER_AXIS = "widest submodel the clients can carry"


def cost_cards(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the figures of costs in the order of the page; one without content is left out."""
    for kind in COST_KINDS:
        yield from _score_by_cost_card(scope, kind)
    yield from _traffic_card(scope)
    yield from _compute_card(scope)
    yield from _shell_card(scope)


def _score_by_cost_card(scope: CardScope, kind: str) -> Iterator[ReportCard]:
    """Yield the scores against simulated time, or against bytes."""
    if len(scope.groups) == 1:
        series = _spending_by_width(scope, kind)
    else:
        series = _spending_by_group(scope, kind)
    if not series:
        return
    largest = _largest_cost(series)
    scale, unit = cost_unit(largest, kind)
    scaled = tuple(_scale_points(one, scale) for one in series)
    label = "sent to clients and back"
    if kind == "time":
        label = "simulated time"
    axes = scope.score_axes(f"{label} ({unit})", whole=False)
    name = f"over-{kind}"
    yield ReportCard(
        name=name,
        title=f"{scope.metric_title} over {kind}",
        svg=draw_lines(name, scaled, axes),
        caption=_spending_caption(scope, kind),
        series=scaled,
    )


def _largest_cost(series: Sequence[PlotSeries]) -> float:
    largest = [max(one.points) for one in series]
    return max(largest)


def _scale_points(one: PlotSeries, scale: float) -> PlotSeries:
    points = {}
    for cost, stat in one.points.items():
        points[cost / scale] = stat
    return replace(one, points=points)


def _spending_by_width(scope: CardScope, kind: str) -> tuple[PlotSeries, ...]:
    group = scope.groups[0]
    points = {}
    for width in numbers.scored_widths(scope.groups):
        label = f"width {width}"
        points[label] = score_by_cost(group, scope.metric, width, kind)
    styles = width_styles(len(points))
    return labelled_series(points, styles)


def _spending_by_group(scope: CardScope, kind: str) -> tuple[PlotSeries, ...]:
    """Return one line for each group, that of the widest model it scored.

    Not all groups have the same widths.
    """
    points: dict[str, dict[Any, SeedStat]] = {}
    for group in scope.groups:
        widths = numbers.scored_widths([group])
        widest = max(widths, default=None)
        label = f"{group.name}, width {widest}"
        points[label] = {}
        if widest is not None:
            points[label] = score_by_cost(group, scope.metric, widest, kind)
    styles = group_styles(len(points))
    return labelled_series(points, styles)


def _spending_caption(scope: CardScope, kind: str) -> str:
    against = "bytes sent to clients and back"
    if kind == "time":
        against = "simulated time, all clients at once"
    spread = scope.spread_note("band")
    caption = f"Test {scope.metric} against {against}, since the run began{spread}."
    if len(scope.groups) > 1:
        caption += " Of each: the widest model it scored."
    staged = []
    for group in scope.groups:
        if group.models > 1:
            staged.append(group.name)
    if staged:
        names = ", ".join(staged)
        caption += f" Models that are trained one after the other add up: {names}."
    return caption


def _traffic_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the bytes sent to and from a client."""
    both_ways = scope.group_series(_bytes_both_ways)
    down = scope.group_series(_bytes_down)
    series = []
    for one, down_part in zip(both_ways, down, strict=True):
        inner = {}
        for width, stat in down_part.points.items():
            inner[width] = stat.mean
        series.append(replace(one, inner=inner))
    axes = AxesLabels(TIER_AXIS, "bytes per client and round", _format_size)
    caption = "Per client and round; full colour: to the client, pale: back from it"
    yield from _tier_cost_card(scope, "Bytes", series, axes, caption)


def _bytes_both_ways(run: ReportRun) -> dict[Width, float]:
    return numbers.client_costs(run, "bytes_down", "bytes_up")


def _bytes_down(run: ReportRun) -> dict[Width, float]:
    return numbers.client_costs(run, "bytes_down")


def _client_macs(run: ReportRun) -> dict[Width, float]:
    return numbers.client_costs(run, "macs")


def _format_size(size: float) -> str:
    return format_cost(size, "bytes")


def _compute_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the multiply-accumulates of a client."""
    series = scope.group_series(_client_macs)
    axes = AxesLabels(TIER_AXIS, "MACs per client and round", format_si)
    caption = "Multiply-accumulates of local training, per client and round"
    yield from _tier_cost_card(scope, "MACs", series, axes, caption)


def _tier_cost_card(
    scope: CardScope,
    what: str,
    drawn: list[PlotSeries],
    axes: AxesLabels,
    caption: str,
) -> Iterator[ReportCard]:
    series = non_empty(drawn)
    if not series:
        return
    spread = scope.spread_note("bars")
    caption += f"{spread}."
    staged = []
    for group in scope.groups:
        if group.models > 1:
            staged.append(f"{group.name} ({group.rounds} rounds)")
    if staged:
        names = ", ".join(staged)
        caption += f" Spent for each of several models: {names}."
    name = what.lower()
    widths = point_widths(series)
    svg = draw_bars(name, series, axes, width_ticks(widths))
    yield ReportCard(name, f"{what} per tier", svg, caption, series)


def _shell_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield how many clients trained each shell."""
    drawn = scope.group_series(numbers.shell_means)
    marked = []
    any_starving = False
    for one, group in zip(drawn, scope.groups, strict=True):
        starving = _starving_widths(group)
        if starving:
            any_starving = True
        marked.append(replace(one, flagged=starving))
    series = non_empty(marked)
    if not series:
        return
    spread = scope.spread_note("bars")
    caption = f"Mean number of clients in a round that trained each shell{spread}. "
    caption += "Dashed: one client. "
    if any_starving:
        caption += "Hatched: starving. "
    caption += STARVING
    axes = AxesLabels(
        x="shell, named by its outer width",
        y="clients per round",
        format_value=format_three_digits,
        threshold=1,
    )
    widths = point_widths(series)
    svg = draw_bars("shells", series, axes, width_ticks(widths))
    yield ReportCard("shells", "Who trained which shell", svg, caption, series)


def _starving_widths(group: RunGroup) -> frozenset[Width]:
    widths = set()
    for shell in numbers.shell_rows(group.runs):
        if shell.starving:
            widths.add(shell.width)
    return frozenset(widths)
