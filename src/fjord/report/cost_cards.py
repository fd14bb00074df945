"""Figures of costs: scores against time and bytes, costs of a client, and clients per shell."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

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
    label = "simulated time" if kind == "time" else "sent to clients and back"
    scale, unit = cost_unit(_largest_cost(series), kind)
    scaled = tuple(_scale_points(one, scale) for one in series)
    name = f"over-{kind}"
    svg = draw_lines(name, scaled, scope.score_axes(f"{label} ({unit})", whole=False))
    caption = _spending_caption(scope, kind)
    yield ReportCard(name, f"{scope.metric_title} over {kind}", svg, caption, scaled)


def _largest_cost(series: Sequence[PlotSeries]) -> float:
    return max(max(one.points) for one in series)


def _scale_points(one: PlotSeries, scale: float) -> PlotSeries:
    return replace(one, points={x / scale: stat for x, stat in one.points.items()})


def _spending_by_width(scope: CardScope, kind: str) -> tuple[PlotSeries, ...]:
    group = scope.groups[0]
    points = {}
    for width in numbers.scored_widths(scope.groups):
        points[f"width {width}"] = score_by_cost(group, scope.metric, width, kind)
    return labelled_series(points, width_styles(len(points)))


def _spending_by_group(scope: CardScope, kind: str) -> tuple[PlotSeries, ...]:
    """Return one line for each group, that of the widest model it scored.

    Not all groups have the same widths.
    """
    points: dict[str, dict[Any, SeedStat]] = {}
    for group in scope.groups:
        widest = max(numbers.scored_widths([group]), default=None)
        label = f"{group.name}, width {widest}"
        points[label] = {}
        if widest is not None:
            points[label] = score_by_cost(group, scope.metric, widest, kind)
    return labelled_series(points, group_styles(len(points)))


def _spending_caption(scope: CardScope, kind: str) -> str:
    against = "bytes sent to clients and back"
    if kind == "time":
        against = "simulated time, all clients at once"
    caption = f"Test {scope.metric} against {against}, since the run began"
    caption += f"{scope.spread_note('band')}."
    if len(scope.groups) > 1:
        caption += " Of each: the widest model it scored."
    staged = [group.name for group in scope.groups if group.models > 1]
    if staged:
        caption += f" Models that are trained one after the other add up: {', '.join(staged)}."
    return caption


def _traffic_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the bytes sent to and from a client."""
    both = scope.group_series(lambda run: numbers.client_costs(run, "bytes_down", "bytes_up"))
    down = scope.group_series(lambda run: numbers.client_costs(run, "bytes_down"))
    series = []
    for one, part in zip(both, down, strict=True):
        inner = {width: stat.mean for width, stat in part.points.items()}
        series.append(replace(one, inner=inner))
    axes = AxesLabels(TIER_AXIS, "bytes per client and round", _format_size)
    caption = "Per client and round; full colour: to the client, pale: back from it"
    yield from _tier_cost_card(scope, "Bytes", series, axes, caption)


def _format_size(size: float) -> str:
    return format_cost(size, "bytes")


def _compute_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the multiply-accumulates of a client."""
    series = scope.group_series(lambda run: numbers.client_costs(run, "macs"))
    axes = AxesLabels(TIER_AXIS, "MACs per client and round", format_si)
    caption = "Multiply-accumulates of local training, per client and round"
    yield from _tier_cost_card(scope, "MACs", series, axes, caption)


def _tier_cost_card(
    scope: CardScope, what: str, drawn: list[PlotSeries], axes: AxesLabels, caption: str
) -> Iterator[ReportCard]:
    series = non_empty(drawn)
    if not series:
        return
    caption += f"{scope.spread_note('bars')}."
    staged = []
    for group in scope.groups:
        if group.models > 1:
            staged.append(f"{group.name} ({group.rounds} rounds)")
    if staged:
        caption += f" Spent for each of several models: {', '.join(staged)}."
    name = what.lower()
    svg = draw_bars(name, series, axes, width_ticks(point_widths(series)))
    yield ReportCard(name, f"{what} per tier", svg, caption, series)


def _shell_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield how many clients trained each shell."""
    marked = []
    for one, group in zip(scope.group_series(numbers.shell_means), scope.groups, strict=True):
        shells = numbers.shell_rows(group.runs)
        starving = frozenset(shell.width for shell in shells if shell.starving)
        marked.append(replace(one, flagged=starving))
    series = non_empty(marked)
    if not series:
        return
    caption = (
        f"Mean number of clients in a round that trained each shell{scope.spread_note('bars')}"
    )
    caption += ". Dashed: one client. "
    if any(one.flagged for one in marked):
        caption += "Hatched: starving. "
    axes = AxesLabels(
        "shell, named by its outer width", "clients per round", format_three_digits, threshold=1
    )
    svg = draw_bars("shells", series, axes, width_ticks(point_widths(series)))
    yield ReportCard("shells", "Who trained which shell", svg, caption + STARVING, series)
