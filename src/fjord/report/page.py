"""Draws run folders as one HTML page that needs nothing else: no network, no other file."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.experiments.runs import RunFolder
from fjord.report import numbers
from fjord.report.cards import STARVING, CardDeck, ReportCard
from fjord.report.cost_to_score import parse_level, usual_levels
from fjord.report.figures import CurveStyle
from fjord.report.groups import (
    ReportRun,
    RunGroup,
    differing_settings,
    group_runs,
    join_words,
    run_commits,
)
from fjord.report.numbers import SeedStat
from fjord.report.tables import NONE, reached, table

SHAPES = {
    "o": "M9 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "s": "M9.5 2.5h7v7h-7z",
    "^": "M13 1.5l4.5 8.5h-9z",
    "D": "M13 1l5 5l-5 5l-5-5z",
    "v": "M13 10.5l4.5-8.5h-9z",
    "P": "M11.5 2h3v2.5H17v3h-2.5V10h-3V7.5H9v-3h2.5z",
    "X": "M9 4l2-2l2 2l2-2l2 2l-2 2l2 2l-2 2l-2-2l-2 2l-2-2l2-2z",
}
GAPS = {"-": "none", "--": "6 3", ":": "2 2", "-.": "6 2 2 2"}


def write_page(runs: list[RunFolder], target: Path, levels: Sequence[str] = ()) -> Path:
    """Draw runs as one self-contained HTML page; those that differ only in their seed are averaged.

    `levels` are the scores, such as 70%, for which the page says what it took to reach them.
    """
    groups = group_runs(runs)
    text = "\n".join(_page(groups, levels))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"page {target}: cannot be written: {error}") from error
    return target


def _page(groups: Sequence[RunGroup], levels: Sequence[str]) -> Iterator[str]:
    metric = str(groups[0].all_runs[0].config["metric"])
    recipes = join_words(run.config["name"] for group in groups for run in group.all_runs)
    title = f"{recipes}: {' vs '.join(group.name for group in groups)}"
    runs = [run for group in groups for run in group.runs]
    wanted = [parse_level(text, metric) for text in levels] or usual_levels(runs, metric)
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    cards = list(CardDeck(groups, metric).cards())
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)} · FjORD</title>\n<style>\n{css}</style>\n</head>\n<body>"
    yield f"<h1>{escape(title)}</h1>\n<p class='sub'>{escape(_subtitle(groups, metric))}</p>"
    yield from _notices(groups, metric)
    yield from _headline(groups, metric)
    yield from reached(groups, metric, wanted)
    yield "<h2>Figures</h2>"
    if not cards:
        yield "<p>There is nothing to draw yet: no round is done.</p>"
    yield '<div class="grid">'
    for card in cards:
        yield _figure(card, groups)
    yield "</div>"
    yield from _dropped(groups)
    yield from _reduced(groups)
    yield from _settings(groups)
    yield "</body>\n</html>\n"


def _subtitle(groups: Sequence[RunGroup], metric: str) -> str:
    runs = [run for group in groups for run in group.all_runs]
    better = "higher" if metric == "accuracy" else "lower"
    what = f"Test {metric}, {better} is better. {_count(len(runs), 'run')} in {_count(len(groups), 'group')}"
    return f"{what}; commit {run_commits(runs)}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _notices(groups: Sequence[RunGroup], metric: str) -> Iterator[str]:
    """Yield what a reader must know before the numbers."""
    hungry = [line for group in groups for line in _starving(group)]
    if hungry:
        yield _box(
            "warn",
            "Warning: starving shells. Their weights have hardly been trained.",
            hungry,
            STARVING,
        )
    unfinished = [line for group in groups for line in _unfinished(group)]
    if unfinished:
        yield _box("warn", "Unfinished runs.", unfinished)
    stranded = [line for group in groups for line in _stranded(group)]
    if stranded:
        note = "They are in no mean over clients, and not in the worst decile."
        yield _box("info", "Clients with no model they can carry.", stranded, note)
    odd = [
        f"{g.name}: seed {join_words(g.repeated)} occurs more than once, so deviations are too small."
        for g in groups
        if g.repeated
    ]
    odd += [
        f"{g.name} was run for {m}, shown is {metric}."
        for g in groups
        if (m := g.settings["metric"]) != metric
    ]
    if odd:
        yield _box("info", "Take care when comparing.", odd)


def _unfinished(group: RunGroup) -> Iterator[str]:
    for run in group.all_runs:
        if not run.finished:
            left_out = "; left out, as other seeds are finished" if run not in group.runs else ""
            so_far = "; its numbers are those so far" if run.rows and not left_out else ""
            yield f"{group.name}, seed {run.config['seed']} ({run.path}): {run.progress}{left_out}{so_far}."


def _starving(group: RunGroup) -> Iterator[str]:
    several = len({shell.target for shell in numbers.shell_rows(group.runs)}) > 1
    for shell in numbers.shell_rows(group.runs):
        if shell.starving:
            model = f" of the model of width {shell.target}" if several else ""
            yield (
                f"{group.name}: shell {shell.width}{model} is starving: trained by {shell.clients:.2g} clients per "
                f"round on average, in {shell.rounds} of {shell.of_rounds} rounds."
            )


def _stranded(group: RunGroup) -> Iterator[str]:
    found: dict[str, list[object]] = {}
    for run in group.runs:
        counts = numbers.without_model(run)
        if counts:
            tiers = ", ".join(f"{count} of tier {width}" for width, count in sorted(counts.items()))
            text = f"{sum(counts.values())} of {len(run.clients)} clients have no model they can carry ({tiers})."
            found.setdefault(text, []).append(run.config["seed"])
    for text, seeds in found.items():
        yield f"{group.name}, seed {join_words(seeds)}: {text}"


def _box(kind: str, head: str, lines: Sequence[str], note: str = "") -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    end = f"<p class='note'>{escape(note)}</p>" if note else ""
    return f'<div class="box {kind}" role="note"><strong>{escape(head)}</strong><ul>{items}</ul>{end}</div>'


def _headline(groups: Sequence[RunGroup], metric: str) -> Iterator[str]:
    """Yield the table of last scores."""
    scores = [
        numbers.over_runs(group, lambda run: numbers.final_scores(run, metric)) for group in groups
    ]
    widths: list[Width] = sorted({width for part in scores for width in part})
    sign = -1 if metric == "accuracy" else 1
    best = {w: min(sign * part[w].mean for part in scores if w in part) for w in widths}
    yield f"<h2>{escape(metric.capitalize())} at each width</h2>"
    if not widths:
        yield "<p>No model has been evaluated yet.</p>"
        return
    rows = [
        [
            group.name,
            group.seeds,
            group.rounds,
            *(_score(part.get(w), metric, len(group.runs)) for w in widths),
        ]
        for group, part in zip(groups, scores, strict=True)
    ]
    marked = {
        (i, 3 + j)
        for i, part in enumerate(scores)
        for j, w in enumerate(widths)
        if len(groups) > 1 and w in part and sign * part[w].mean == best[w]
    }
    yield table(["", "seeds", "rounds", *(f"width {w}" for w in widths)], rows, marked)
    spread = (
        "Mean ± sample standard deviation over seeds. "
        if any(len(g.runs) > 1 for g in groups)
        else ""
    )
    bold = "Bold: the best mean at each width." if len(groups) > 1 else ""
    blank = (
        ""
        if all(w in part for part in scores for w in widths)
        else f" {NONE}: no model of this width was scored."
    )
    yield f"<p class='note'>{spread}{bold}{blank}</p>"


def _score(value: SeedStat | None, metric: str, runs: int) -> str:
    if value is None:
        return NONE
    factor, unit = (100, "%") if metric == "accuracy" else (1, "")
    digits = ".1f" if metric == "accuracy" else ".3f" if value.mean < 1000 else ".3g"
    spread = "" if value.sd is None else f" ± {factor * value.sd:{digits}}"
    part = f" ({value.count} of {runs} runs)" if value.count < runs else ""
    return f"{factor * value.mean:{digits}}{spread}{unit}{part}"


def _figure(card: ReportCard, groups: Sequence[RunGroup]) -> str:
    legend = "".join(
        f"<li>{_swatch(style)}<span>{escape(label)}</span></li>" for label, style in card.legend
    )
    return (
        f'<figure id="{card.name}"><h3 id="{card.name}-title">{escape(card.title)}</h3>{card.svg}'
        f'<figcaption><ul class="legend">{legend}</ul><p>{escape(card.caption)}</p>'
        f'<p class="origin">{escape(_origin(groups))}</p></figcaption></figure>'
    )


def _swatch(style: CurveStyle) -> str:
    return (
        f'<svg viewBox="0 0 26 12" aria-hidden="true"><path d="M0 6h26" stroke="{style.colour}" stroke-width="2" '
        f'stroke-dasharray="{GAPS[style.dash]}"/><path d="{SHAPES[style.marker]}" fill="{style.colour}"/></svg>'
    )


def _origin(groups: Sequence[RunGroup]) -> str:
    """Return recipe, method, seeds and commits: what a number is worth nothing without."""
    runs = [run for group in groups for run in group.runs]
    methods = "; ".join(
        f"{group.name}, seed{'s' * (len(group.runs) > 1)} {group.seeds}" for group in groups
    )
    return f"recipe {join_words(run.recipe for run in runs)} · method {methods} · commit {run_commits(runs)}"


def _dropped(groups: Sequence[RunGroup]) -> Iterator[str]:
    found = [(group.name, numbers.dropped_reasons(group)) for group in groups]
    if any(reasons for _, reasons in found):
        yield "<h2>Dropped updates</h2>"
        lines = [
            f"{name}: {_count(n, 'update')}: {why}"
            for name, reasons in found
            for why, n in reasons.items()
        ]
        total = sum(n for _, reasons in found for n in reasons.values())
        note = (
            "What was sent to their clients is counted in the bytes per tier; the clients are not."
        )
        yield _box("warn", f"{_count(total, 'update')} of clients could not be used.", lines, note)


def _reduced(groups: Sequence[RunGroup]) -> Iterator[str]:
    found = [(group.name, numbers.reduced_reasons(group)) for group in groups]
    if any(reasons for _, reasons in found):
        yield "<h2>Reduced updates</h2>"
        lines = [
            f"{name}: {_count(n, 'update')}: {why}"
            for name, reasons in found
            for why, n in reasons.items()
        ]
        total = sum(n for _, reasons in found for n in reasons.values())
        note = "They are merged for what they hold, and counted in the tier up to which they were trained."
        yield _box(
            "info",
            f"{_count(total, 'update')} of clients that trained less than they were sent.",
            lines,
            note,
        )


def _settings(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield what differs between groups, and all there is to know of each run."""
    if len(groups) > 1:
        keys = differing_settings([group.settings for group in groups])
        rows = [[group.name, *(group.settings.get(key, NONE) for key in keys)] for group in groups]
        yield f"<h2>Settings that differ</h2>{table(['', *keys], rows)}"
    yield "<h2>All settings</h2>"
    for group in groups:
        config = {
            key: value
            for key, value in group.all_runs[0].config.items()
            if key not in ("seed", "recipe")
        }
        runs = "".join(f"<li>{escape(_run(run))}</li>" for run in group.all_runs)
        full = escape(json.dumps(config, indent=2, ensure_ascii=False))
        yield f"<details><summary>{escape(group.name)}</summary><ul>{runs}</ul><pre>{full}</pre></details>"


def _run(run: ReportRun) -> str:
    recipe = " ".join(
        [run.recipe, *(f"--set {text}" for text in (run.config.get("recipe") or {}).get("set", []))]
    )
    machine = ", ".join(f"{key} {value}" for key, value in run.env.items())
    return f"seed {run.config['seed']}: {run.path}; recipe {recipe}; {machine}"
