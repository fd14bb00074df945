"""Figures of scores: against width, per tier, of the worst clients, and against rounds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fjord.core.width import Width
from fjord.report import numbers
from fjord.report.cards import (
    CardScope,
    ReportCard,
    format_three_digits,
    labelled_series,
    non_empty,
    point_widths,
    unserved_note,
    width_ticks,
)
from fjord.report.figures import (
    AxesLabels,
    PlotSeries,
    draw_bars,
    draw_lines,
    group_styles,
    width_styles,
)
from fjord.report.groups import RunGroup
from fjord.report.numbers import SeedStat


def score_cards(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the figures of scores in the order of the page; one without content is left out."""
    yield from _width_card(scope)
    yield from _tier_card(scope)
    yield from _worst_decile_card(scope)
    yield from _convergence_cards(scope)
    yield from _loss_card(scope)


def _width_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the last scores against width."""
    drawn = scope.group_series(lambda run: numbers.final_scores(run, scope.metric))
    series = non_empty(drawn)
    if series:
        ticks = width_ticks(point_widths(series))
        svg = draw_lines("by-width", series, scope.score_axes("width of the submodel"), ticks)
        caption = f"Last test {scope.metric} at each width{scope.spread_note('bars')}."
        yield ReportCard("by-width", f"{scope.metric_title} against width", svg, caption, series)


def _tier_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the scores of the clients of each ceiling."""
    drawn = scope.group_series(
        lambda run: numbers.tier_scores(run, scope.metric), name_unserved=True
    )
    unserved = [_unserved_tiers(group, scope.metric) for group in scope.groups]
    marked = [replace(one, absent=tiers) for one, tiers in zip(drawn, unserved, strict=True)]
    series = non_empty(marked)
    if not series:
        return
    widths = point_widths(series)
    for one in series:
        widths += one.absent
    caption = f"{scope.mean_name} over clients, each with the widest model it can carry"
    caption += f"{scope.spread_note('bars')}."
    if any(unserved):
        caption += " A cross: a tier whose clients have no model they can carry."
    axes = scope.score_axes("widest submodel the clients can carry")
    svg = draw_bars("by-tier", series, axes, width_ticks(widths))
    yield ReportCard("by-tier", f"{scope.metric_title} per tier", svg, caption, series)


def _unserved_tiers(group: RunGroup, metric: str) -> frozenset[Width]:
    """Return the ceilings at which no client has a model."""
    served: set[Width] = set()
    unserved: set[Width] = set()
    for run in group.runs:
        served.update(numbers.tier_scores(run, metric))
        ceilings = numbers.without_model(run).keys() - {"unknown"}
        unserved.update(map(Width, ceilings))
    return frozenset(unserved - served)


def _worst_decile_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the mean over the worst tenth of clients beside the mean over all."""
    drawn = scope.group_series(
        lambda run: numbers.client_means(run, scope.metric), name_unserved=True
    )
    series = non_empty(drawn)
    if not series:
        return
    counts = {numbers.count_served(run) for run in scope.runs} - {0}
    tenths = [f"{numbers.decile_size(count)} of {count}" for count in sorted(counts)]
    caption = f"Worst decile: the {scope.mean_name.lower()} over the 10% of clients with the worst "
    caption += f"{scope.metric} ({' or '.join(tenths)}){scope.spread_note('bars')}."
    everyone = "all clients"
    if any(unserved_note(group) for group in scope.groups):
        everyone = "all with a model"
    places = {"worst": "worst decile of clients", "all": everyone}
    svg = draw_bars("worst-decile", series, scope.score_axes(""), places)
    yield ReportCard("worst-decile", "Worst decile of clients", svg, caption, series)


def _convergence_cards(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the scores against rounds: all widths of one group, or all groups at each width."""
    widths = numbers.scored_widths(scope.groups)
    if len(scope.groups) == 1:
        points = {f"width {w}": _score_curves(scope.groups[0], scope.metric, w) for w in widths}
        series = labelled_series(points, width_styles(len(widths)))
        yield from _convergence_card(scope, "convergence", "Convergence", series)
        return
    for width in widths:
        points = {group.name: _score_curves(group, scope.metric, width) for group in scope.groups}
        series = labelled_series(points, group_styles(len(points)))
        name = f"convergence-{str(width).replace('/', 'of')}"
        yield from _convergence_card(scope, name, f"Convergence at width {width}", series)


def _score_curves(group: RunGroup, metric: str, width: Width) -> dict[Any, SeedStat]:
    return numbers.over_runs(group, lambda run: numbers.score_curve(run, metric, width))


def _convergence_card(
    scope: CardScope, name: str, title: str, series: tuple[PlotSeries, ...]
) -> Iterator[ReportCard]:
    if series:
        svg = draw_lines(name, series, scope.score_axes("rounds"))
        caption = f"Test {scope.metric} against rounds{scope.spread_note('band')}."
        yield ReportCard(name, title, svg, caption, series)


def _loss_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the training loss: of all models of one group, or of the widest of each group."""
    if len(scope.groups) == 1:
        series = _losses_by_model(scope.groups[0])
    else:
        series = _losses_by_group(scope.groups)
    if not series:
        return
    sentences = []
    window = max(numbers.loss_window(run) for run in scope.runs)
    if window > 1:
        sentences.append(f"Mean over the last {window} rounds{scope.spread_note('band')}.")
    if len(scope.groups) > 1:
        sentences.append("Where a method trains several models: the widest.")
        sentences.append("Losses of different methods may be of different kinds.")
    axes = AxesLabels("rounds", "training loss", format_three_digits, may_be_log=True)
    svg = draw_lines("loss", series, axes)
    yield ReportCard("loss", "Training loss, smoothed", svg, " ".join(sentences), series)


def _losses_by_model(group: RunGroup) -> tuple[PlotSeries, ...]:
    targets = _trained_widths(group)
    if len(targets) == 1:
        points = {group.name: _loss_curves(group, targets[0])}
        return labelled_series(points, group_styles(1))
    points = {f"model of width {target}": _loss_curves(group, target) for target in targets}
    return labelled_series(points, width_styles(len(points)))


def _losses_by_group(groups: Sequence[RunGroup]) -> tuple[PlotSeries, ...]:
    points = {}
    for group in groups:
        widest = max(_trained_widths(group), default=Width(1))
        points[group.name] = _loss_curves(group, widest)
    return labelled_series(points, group_styles(len(points)))


def _trained_widths(group: RunGroup) -> list[Width]:
    widths: set[Width] = set()
    for run in group.runs:
        widths.update(numbers.model_widths(run))
    return sorted(widths)


def _loss_curves(group: RunGroup, target: Width) -> dict[Any, SeedStat]:
    return numbers.over_runs(group, lambda run: numbers.loss_curve(run, target))
