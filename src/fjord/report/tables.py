"""Tables of the page."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from html import escape

from fjord.core.width import Width
from fjord.report.cost_to_score import (
    COST_KINDS,
    costs_to_score,
    format_cost_stat,
    format_level,
    records_cost,
)
from fjord.report.groups import RunGroup

NONE = "\N{EN DASH}"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], marked: set[tuple[int, int]] | None = None
) -> str:
    """Return a table whose rows become blocks on a phone, each cell with its own label."""
    top = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    lines = []
    for i, row in enumerate(rows):
        cells = "".join(
            f'<td data-label="{escape(head[j])}"{" class=best" if marked and (i, j) in marked else ""}>'
            f"<span{' class=short' if len(cell) < 20 else ''}>{escape(cell)}</span></td>"
            for j, cell in enumerate(row)
            if j
        )
        lines.append(f"<tr><th scope='row'>{escape(row[0])}</th>{cells}</tr>")
    body = f"<tbody>{''.join(lines)}</tbody>"
    return f"<div class='wide'><table><thead><tr>{top}</tr></thead>{body}</table></div>"


def reached(groups: Sequence[RunGroup], metric: str, levels: Sequence[Fraction]) -> Iterator[str]:
    """Yield what it took to reach some scores: simulated time where there is a clock, and bytes."""
    widths = sorted(
        {Width(w) for g in groups for r in g.runs for row in r.rows for w in row["scores"]}
    )
    for kind in COST_KINDS if levels and widths else ():
        told = [group for group in groups if any(records_cost(run, kind) for run in group.runs)]
        if told:
            yield from _reached(told, metric, levels, kind, widths)


def _reached(
    groups: Sequence[RunGroup],
    metric: str,
    levels: Sequence[Fraction],
    kind: str,
    widths: Sequence[Width],
) -> Iterator[str]:
    yield f"<h2>{'Simulated time' if kind == 'time' else 'Bytes'} to reach a test {escape(metric)}</h2>"
    rows: list[list[str]] = []
    marked: set[tuple[int, int]] = set()
    for level in levels:
        found = [costs_to_score(group, metric, level, kind) for group in groups]
        for j, width in enumerate(widths):
            means = [part[width].mean for part in found if width in part]
            best = [
                i
                for i, part in enumerate(found)
                if width in part and part[width].mean == min(means)
            ]
            marked |= {(len(rows) + i, 2 + j) for i in best if len(groups) > 1}
        for group, part in zip(groups, found, strict=True):
            cells = [
                format_cost_stat(part.get(width), kind, len(group.runs), NONE) for width in widths
            ]
            rows.append([group.name, format_level(level, metric), *cells])
    yield table(["", metric, *(f"width {w}" for w in widths)], rows, marked)
    yield f"<p class='note'>{_note(groups, kind)}</p>"


def _note(groups: Sequence[RunGroup], kind: str) -> str:
    what = (
        "Sum of the simulated durations of the rounds"
        if kind == "time"
        else "All bytes sent to clients and back"
    )
    staged = (
        " and of the models trained before" if any(group.models > 1 for group in groups) else ""
    )
    spread = (
        " Mean ± sample standard deviation over seeds."
        if any(len(g.runs) > 1 for g in groups)
        else ""
    )
    bold = " Bold: the least." if len(groups) > 1 else ""
    until = (
        "up to the first test that reached it (a model is tested every few rounds, see eval_every)"
    )
    return f"{what}{staged}, {until}.{spread}{bold} {NONE}: not reached."
