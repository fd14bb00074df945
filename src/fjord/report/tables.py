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
    widths = numbers.scored_widths(groups)
    widths = [width for width in widths if any(width in part for part in scores)]
    if not widths:
        return PageTable(title, [], [], note="No model has been evaluated yet.")
    rows = []
    for group, part in zip(groups, scores, strict=True):
        cells = [_format_score(part.get(width), metric, len(group.runs)) for width in widths]
        rows.append([group.name, group.seeds, group.rounds, *cells])
    best: Cells = frozenset()
    if len(groups) > 1:
        best = _best_cells(scores, widths, first_column=3, highest=metric == "accuracy")
    head = ["", "seeds", "rounds", *(f"width {width}" for width in widths)]
    return PageTable(title, head, rows, best, _score_note(groups, scores, widths))


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
    choose = max if highest else min
    cells: set[tuple[int, int]] = set()
    for column, width in enumerate(widths, first_column):
        means = {row: part[width].mean for row, part in enumerate(parts) if width in part}
        if means:
            best = choose(means.values())
            cells.update((row, column) for row, mean in means.items() if mean == best)
    return frozenset(cells)


def _score_note(
    groups: Sequence[RunGroup], scores: Sequence[dict[Width, SeedStat]], widths: Sequence[Width]
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
    text = f"{factor * value.mean:{digits}}"
    if value.sd is not None:
        text += f" ± {factor * value.sd:{digits}}"
    text += unit
    if value.count < runs:
        text += f" ({value.count} of {runs} runs)"
    return text


def cost_tables(
    groups: Sequence[RunGroup], metric: str, levels: Sequence[Fraction]
) -> Iterator[PageTable]:
    """Yield what it took to reach some scores: simulated time where there is a clock, and bytes."""
    if not levels or not numbers.scored_widths(groups):
        return
    for kind in COST_KINDS:
        recorded = [group for group in groups if _group_records(group, kind)]
        if recorded:
            yield _cost_table(recorded, metric, levels, kind, numbers.scored_widths(groups))


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
        parts = [costs_to_score(group, metric, level, kind) for group in groups]
        if len(groups) > 1:
            for row, column in _best_cells(parts, widths, first_column=2, highest=False):
                best.add((len(rows) + row, column))
        for group, part in zip(groups, parts, strict=True):
            row_cells = [group.name, format_level(level, metric)]
            for width in widths:
                stat = part.get(width)
                row_cells.append(format_cost_stat(stat, kind, len(group.runs), NONE))
            rows.append(row_cells)
    what = "Simulated time" if kind == "time" else "Bytes"
    title = f"{what} to reach a test {metric}"
    head = ["", metric, *(f"width {width}" for width in widths)]
    return PageTable(title, head, rows, frozenset(best), _cost_note(groups, kind))


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
    keys = differing_settings([group.settings for group in groups])
    rows = []
    for group in groups:
        values = [group.settings.get(key, NONE) for key in keys]
        rows.append([group.name, *values])
    return PageTable("Settings that differ", ["", *keys], rows)
