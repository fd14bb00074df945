"""Tables of the page, as plain text cells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fjord.core.width import Width
from fjord.report import numbers
from fjord.report.cost_to_score import (
    COST_KINDS,
    costs_to_score,
    format_cost_stat,
    format_level,
    records_cost,
)
from fjord.report.groups import RunGroup, differing_settings
from fjord.report.numbers import SeedStat

NONE = "\N{EN DASH}"
SPREAD = "Mean ± sample standard deviation over seeds."
Cells = frozenset[tuple[int, int]]
"""Places in a table: row and column, from 0."""


@dataclass(frozen=True)
class PageTable:
    """A table; the first cell of each row is its label."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Cells = frozenset()
    """Cells that are bold."""
    note: str = ""


def score_table(groups: Sequence[RunGroup], metric: str) -> PageTable:
    """Return the last scores of each group at each width."""
    title = f"{metric.capitalize()} at each width"
    scores = [_final_stats(group, metric) for group in groups]
    # Only widths with a score that can be averaged: a group may have none but NaN.
    scored: set[Width] = set()
    for stats in scores:
        scored.update(stats)
    widths = sorted(scored)
    if not widths:
        return PageTable(title, [], [], note="No model has been evaluated yet.")
    rows = []
    for group, stats in zip(groups, scores, strict=True):
        cells = [group.name, group.seeds, group.rounds]
        for width in widths:
            stat = stats.get(width)
            cells.append(_format_score(stat, metric, len(group.runs)))
        rows.append(cells)
    best: Cells = frozenset()
    if len(groups) > 1:
        highest = metric == "accuracy"
        best = _best_cells(scores, widths, first_column=3, highest=highest)
    return PageTable(
        title=title,
        head=["", "seeds", "rounds", *_width_heads(widths)],
        rows=rows,
        best=best,
        note=_score_note(groups, scores, widths),
    )


def _width_heads(widths: Sequence[Width]) -> list[str]:
    return [f"width {width}" for width in widths]


def _final_stats(group: RunGroup, metric: str) -> dict[Width, SeedStat]:
    return numbers.over_runs(group, lambda run: numbers.final_scores(run, metric))


def _best_cells(
    parts: Sequence[dict[Width, SeedStat]],
    widths: Sequence[Width],
    *,
    first_column: int,
    highest: bool,
) -> Cells:
    """Return the cells of the best mean of each width; several if they are equal."""
    cells = set()
    for column, width in enumerate(widths, first_column):
        means = {}
        for row, stats in enumerate(parts):
            if width in stats:
                means[row] = stats[width].mean
        if not means:
            continue
        if highest:
            best = max(means.values())
        else:
            best = min(means.values())
        for row, mean in means.items():
            if mean == best:
                cells.add((row, column))
    return frozenset(cells)


def _score_note(
    groups: Sequence[RunGroup],
    scores: Sequence[dict[Width, SeedStat]],
    widths: Sequence[Width],
) -> str:
    sentences = []
    if _has_spread(groups):
        sentences.append(SPREAD)
    if len(groups) > 1:
        sentences.append("Bold: the best mean at each width.")
    if any(len(part) < len(widths) for part in scores):
        sentences.append(f"{NONE}: no model of this width was scored.")
    return " ".join(sentences)


def _has_spread(groups: Sequence[RunGroup]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def _format_score(value: SeedStat | None, metric: str, runs: int) -> str:
    if value is None:
        return NONE
    factor = 1
    unit = ""
    digits = ".3f"
    if metric == "accuracy":
        factor = 100
        unit = "%"
        digits = ".1f"
    elif value.mean >= 1000:
        digits = ".3g"
    mean = factor * value.mean
    text = f"{mean:{digits}}"
    if value.sd is not None:
        deviation = factor * value.sd
        text += f" ± {deviation:{digits}}"
    text += unit
    if value.count < runs:
        text += f" ({value.count} of {runs} runs)"
    return text


def cost_tables(
    groups: Sequence[RunGroup],
    metric: str,
    levels: Sequence[Fraction],
) -> Iterator[PageTable]:
    """Yield what it took to reach some scores: simulated time where there is a clock, and bytes."""
    widths = numbers.scored_widths(groups)
    if not levels or not widths:
        return
    for kind in COST_KINDS:
        recorded = [group for group in groups if _group_records(group, kind)]
        if recorded:
            yield _cost_table(recorded, metric, levels, kind, widths)


def _group_records(group: RunGroup, kind: str) -> bool:
    return any(records_cost(run, kind) for run in group.runs)


def _cost_table(
    groups: Sequence[RunGroup],
    metric: str,
    levels: Sequence[Fraction],
    kind: str,
    widths: Sequence[Width],
) -> PageTable:
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for level in levels:
        costs = [costs_to_score(group, metric, level, kind) for group in groups]
        if len(groups) > 1:
            first_row = len(rows)
            for row, column in _best_cells(costs, widths, first_column=2, highest=False):
                best.add((first_row + row, column))
        level_text = format_level(level, metric)
        for group, stats in zip(groups, costs, strict=True):
            cells = [group.name, level_text]
            for width in widths:
                stat = stats.get(width)
                cells.append(format_cost_stat(stat, kind, len(group.runs), NONE))
            rows.append(cells)
    what = "Bytes"
    if kind == "time":
        what = "Simulated time"
    return PageTable(
        title=f"{what} to reach a test {metric}",
        head=["", metric, *_width_heads(widths)],
        rows=rows,
        best=frozenset(best),
        note=_cost_note(groups, kind),
    )


def _cost_note(groups: Sequence[RunGroup], kind: str) -> str:
    what = "All bytes sent to clients and back"
    if kind == "time":
        what = "Sum of the simulated durations of the rounds"
    if any(group.models > 1 for group in groups):
        what += " and of the models trained before"
    until = "up to the first test that reached it"
    sentences = [f"{what}, {until} (a model is tested every few rounds, see eval_every)."]
    if _has_spread(groups):
        sentences.append(SPREAD)
    if len(groups) > 1:
        sentences.append("Bold: the least.")
    sentences.append(f"{NONE}: not reached.")
    return " ".join(sentences)


def settings_table(groups: Sequence[RunGroup]) -> PageTable | None:
    """Return the settings in which groups differ; None where there is one group."""
    if len(groups) == 1:
        return None
    settings_of_groups = [group.settings for group in groups]
    keys = differing_settings(settings_of_groups)
    rows = []
    for group, settings in zip(groups, settings_of_groups, strict=True):
        cells = [group.name]
        for key in keys:
            cells.append(settings.get(key, NONE))
        rows.append(cells)
    return PageTable("Settings that differ", ["", *keys], rows)
