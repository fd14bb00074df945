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
    if not series:
        return
    widths = point_widths(series)
    axes = scope.score_axes("width of the submodel")
    spread = scope.spread_note("bars")
    yield ReportCard(
        name="by-width",
        title=f"{scope.metric_title} against width",
        svg=draw_lines("by-width", series, axes, width_ticks(widths)),
        caption=f"Last test {scope.metric} at each width{spread}.",
        series=series,
    )


def _tier_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the scores of the clients of each ceiling."""
    drawn = scope.group_series(
        lambda run: numbers.tier_scores(run, scope.metric),
        name_unserved=True,
    )
    marked = []
    for one, group in zip(drawn, scope.groups, strict=True):
        unserved = _unserved_tiers(group, scope.metric)
        marked.append(replace(one, absent=unserved))
    series = non_empty(marked)
    if not series:
        return
    widths = point_widths(series)
    for one in series:
        widths += one.absent
    spread = scope.spread_note("bars")
    caption = f"{scope.mean_name} over clients, each with the widest model it can carry{spread}."
    if any(one.absent for one in marked):
        caption += " A cross: a tier whose clients have no model they can carry."
    axes = scope.score_axes("widest submodel the clients can carry")
    svg = draw_bars("by-tier", series, axes, width_ticks(widths))
    title = f"{scope.metric_title} per tier"
    yield ReportCard("by-tier", title, svg, caption, series)


def _unserved_tiers(group: RunGroup, metric: str) -> frozenset[Width]:
    """Return the ceilings at which no client has a model."""
    served: set[Width] = set()
    unserved: set[Width] = set()
    for run in group.runs:
        served.update(numbers.tier_scores(run, metric))
        for ceiling in numbers.without_model(run):
            if ceiling != "unknown":
                unserved.add(Width(ceiling))
    return frozenset(unserved - served)


def _worst_decile_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the mean over the worst tenth of clients beside the mean over all."""
    drawn = scope.group_series(
        lambda run: numbers.client_means(run, scope.metric),
        name_unserved=True,
    )
    series = non_empty(drawn)
    if not series:
        return
    everyone = "all clients"
    if any(unserved_note(group) for group in scope.groups):
        everyone = "all with a model"
    places = {"worst": "worst decile of clients", "all": everyone}
    axes = scope.score_axes("")
    yield ReportCard(
        name="worst-decile",
        title="Worst decile of clients",
        svg=draw_bars("worst-decile", series, axes, places),
        caption=_worst_decile_caption(scope),
        series=series,
    )


def _worst_decile_caption(scope: CardScope) -> str:
    counts = {numbers.count_served(run) for run in scope.runs}
    counts.discard(0)
    deciles = []
    for count in sorted(counts):
        size = numbers.decile_size(count)
        deciles.append(f"{size} of {count}")
    sizes = " or ".join(deciles)
    mean = scope.mean_name.lower()
    spread = scope.spread_note("bars")
    caption = f"Worst decile: the {mean} over the 10% of clients with the worst {scope.metric}"
    return f"{caption} ({sizes}){spread}."


def _convergence_cards(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the scores against rounds: all widths of one group, or all groups at each width."""
    widths = numbers.scored_widths(scope.groups)
    if len(scope.groups) == 1:
        series = _convergence_by_width(scope, widths)
        yield from _convergence_card(scope, "convergence", "Convergence", series)
        return
    for width in widths:
        series = _convergence_by_group(scope, width)
        text = str(width)
        name = "convergence-" + text.replace("/", "of")
        title = f"Convergence at width {text}"
        yield from _convergence_card(scope, name, title, series)


def _convergence_by_width(scope: CardScope, widths: Sequence[Width]) -> tuple[PlotSeries, ...]:
    group = scope.groups[0]
    points = {}
    for width in widths:
        label = f"width {width}"
        points[label] = _score_curves(group, scope.metric, width)
    styles = width_styles(len(widths))
    return labelled_series(points, styles)


def _convergence_by_group(scope: CardScope, width: Width) -> tuple[PlotSeries, ...]:
    points = {}
    for group in scope.groups:
        points[group.name] = _score_curves(group, scope.metric, width)
    styles = group_styles(len(points))
    return labelled_series(points, styles)


def _score_curves(group: RunGroup, metric: str, width: Width) -> dict[Any, SeedStat]:
    return numbers.over_runs(group, lambda run: numbers.score_curve(run, metric, width))


def _convergence_card(
    scope: CardScope,
    name: str,
    title: str,
    series: tuple[PlotSeries, ...],
) -> Iterator[ReportCard]:
    if not series:
        return
    axes = scope.score_axes("rounds")
    svg = draw_lines(name, series, axes)
    spread = scope.spread_note("band")
    caption = f"Test {scope.metric} against rounds{spread}."
    yield ReportCard(name, title, svg, caption, series)


def _loss_card(scope: CardScope) -> Iterator[ReportCard]:
    """Yield the training loss: of all models of one group, or of the widest of each group."""
    if len(scope.groups) == 1:
        series = _losses_by_model(scope.groups[0])
    else:
        series = _losses_by_group(scope.groups)
    if not series:
        return
    axes = AxesLabels("rounds", "training loss", format_three_digits, may_be_log=True)
    yield ReportCard(
        name="loss",
        title="Training loss, smoothed",
        svg=draw_lines("loss", series, axes),
        caption=_loss_caption(scope),
        series=series,
    )


def _loss_caption(scope: CardScope) -> str:
    sentences = []
    window = max(numbers.loss_window(run) for run in scope.runs)
    if window > 1:
        spread = scope.spread_note("band")
        sentences.append(f"Mean over the last {window} rounds{spread}.")
    if len(scope.groups) > 1:
        sentences.append("Where a method trains several models: the widest.")
        sentences.append("Losses of different methods may be of different kinds.")
    return " ".join(sentences)


def _losses_by_model(group: RunGroup) -> tuple[PlotSeries, ...]:
    targets = _trained_widths(group)
    if len(targets) == 1:
        points = {group.name: _loss_curves(group, targets[0])}
        return labelled_series(points, group_styles(1))
    points = {}
    for target in targets:
        label = f"model of width {target}"
        points[label] = _loss_curves(group, target)
    styles = width_styles(len(points))
    return labelled_series(points, styles)


def _losses_by_group(groups: Sequence[RunGroup]) -> tuple[PlotSeries, ...]:
    points = {}
    for group in groups:
        widths = _trained_widths(group)
        widest = max(widths, default=Width(1))
        points[group.name] = _loss_curves(group, widest)
    styles = group_styles(len(points))
    return labelled_series(points, styles)


def _trained_widths(group: RunGroup) -> list[Width]:
    widths: set[Width] = set()
    for run in group.runs:
        widths.update(numbers.model_widths(run))
    return sorted(widths)


def _loss_curves(group: RunGroup, target: Width) -> dict[Any, SeedStat]:
    return numbers.over_runs(group, lambda run: numbers.loss_curve(run, target))
