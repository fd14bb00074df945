"""What a reader must know beside the numbers: starving shells, unfinished runs, dropped updates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fjord.report import numbers
from fjord.report.cost_cards import STARVING
from fjord.report.groups import ReportRun, RunGroup, join_words

DROPPED_NOTE = (
    "What was sent to their clients is counted in the bytes per tier; the clients are not."
)
REDUCED_NOTE = (
    "They are merged for what they hold, and counted in the tier up to which they were trained."
)


@dataclass(frozen=True)
class PageNotice:
    """A box with some lines."""

    kind: str
    """warn or info."""
    head: str
    lines: Sequence[str]
    note: str = ""


def page_notices(groups: Sequence[RunGroup], metric: str) -> Iterator[PageNotice]:
    """Yield what a reader must know before the numbers."""
    starving: list[str] = []
    unfinished: list[str] = []
    unserved: list[str] = []
    cautions: list[str] = []
    for group in groups:
        starving += _starving_shells(group)
        unfinished += _unfinished_runs(group)
        unserved += _unserved_clients(group)
        cautions += _repeated_seeds(group)
    for group in groups:
        cautions += _other_metric(group, metric)
    if starving:
        head = "Warning: starving shells. Their weights have hardly been trained."
        yield PageNotice("warn", head, starving, STARVING)
    if unfinished:
        yield PageNotice("warn", "Unfinished runs.", unfinished)
    if unserved:
        note = "They are in no mean over clients, and not in the worst decile."
        yield PageNotice("info", "Clients with no model they can carry.", unserved, note)
    if cautions:
        yield PageNotice("info", "Take care when comparing.", cautions)


def _starving_shells(group: RunGroup) -> Iterator[str]:
    shells = numbers.shell_rows(group.runs)
    targets = {shell.target for shell in shells}
    for shell in shells:
        if not shell.starving:
            continue
        name = f"shell {shell.width}"
        if len(targets) > 1:
            name += f" of the model of width {shell.target}"
        mean = f"{shell.clients:.2g} clients per round on average"
        rounds = f"in {shell.rounds} of {shell.of_rounds} rounds"
        yield f"{group.name}: {name} is starving: trained by {mean}, {rounds}."


def _unfinished_runs(group: RunGroup) -> Iterator[str]:
    for run in group.all_runs:
        if run.finished:
            continue
        seed = run.config["seed"]
        line = f"{group.name}, seed {seed} ({run.path}): {run.progress}"
        if run not in group.runs:
            line += "; left out, as other seeds are finished"
        elif run.rows:
            line += "; its numbers are those so far"
        yield f"{line}."


def _unserved_clients(group: RunGroup) -> Iterator[str]:
    """Yield how many clients can carry no model, once for all seeds with the same counts."""
    seeds: dict[str, list[object]] = {}
    for run in group.runs:
        if numbers.without_model(run):
            text = _unserved_text(run)
            same_counts = seeds.setdefault(text, [])
            same_counts.append(run.config["seed"])
    for text, same_counts in seeds.items():
        names = join_words(same_counts)
        yield f"{group.name}, seed {names}: {text}"


def _unserved_text(run: ReportRun) -> str:
    counts = numbers.without_model(run)
    tiers = []
    for width, count in sorted(counts.items()):
        tiers.append(f"{count} of tier {width}")
    by_tier = ", ".join(tiers)
    unserved = sum(counts.values())
    clients = len(run.clients)
    return f"{unserved} of {clients} clients have no model they can carry ({by_tier})."


def _repeated_seeds(group: RunGroup) -> Iterator[str]:
    if group.repeated_seeds:
        seeds = join_words(group.repeated_seeds)
        yield f"{group.name}: seed {seeds} occurs more than once, so deviations are too small."


def _other_metric(group: RunGroup, metric: str) -> Iterator[str]:
    own = group.settings["metric"]
    if own != metric:
        yield f"{group.name} was run for {own}, shown is {metric}."


def update_notices(groups: Sequence[RunGroup]) -> Iterator[tuple[str, PageNotice]]:
    """Yield the updates that were not used as sent, each box under its own title."""
    dropped = {group.name: numbers.dropped_reasons(group) for group in groups}
    if any(dropped.values()):
        updates = _count_updates(dropped)
        notice = PageNotice(
            kind="warn",
            head=f"{updates} of clients could not be used.",
            lines=_reason_lines(dropped),
            note=DROPPED_NOTE,
        )
        yield "Dropped updates", notice
    reduced = {group.name: numbers.reduced_reasons(group) for group in groups}
    if any(reduced.values()):
        updates = _count_updates(reduced)
        notice = PageNotice(
            kind="info",
            head=f"{updates} of clients that trained less than they were sent.",
            lines=_reason_lines(reduced),
            note=REDUCED_NOTE,
        )
        yield "Reduced updates", notice


def _count_updates(reasons: dict[str, dict[str, int]]) -> str:
    total = 0
    for counts in reasons.values():
        total += sum(counts.values())
    return count_noun(total, "update")


def _reason_lines(reasons: dict[str, dict[str, int]]) -> list[str]:
    lines = []
    for name, counts in reasons.items():
        for reason, count in counts.items():
            updates = count_noun(count, "update")
            lines.append(f"{name}: {updates}: {reason}")
    return lines


def count_noun(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count_noun(1, "run"), count_noun(1200, "run")
    ('1 run', '1,200 runs')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"
