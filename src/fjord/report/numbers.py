"""The numbers behind the page: means and deviations over seeds of scores, costs and shells."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fjord.core.width import Width
from fjord.report.groups import ReportRun, RunGroup

RunValues = Callable[[ReportRun], Mapping[Any, float]]
"""Reads one number for each key, such as a width, from a run."""
LOSS_POINTS = 300
"""At most about so many points of a training loss are drawn."""


@dataclass(frozen=True)
class SeedStat:
    """A mean over runs, and the sample standard deviation if there are two runs or more."""

    mean: float
    sd: float | None
    count: int

    @property
    def top(self) -> float:
        """The upper end of the error bar."""
        return self.mean + (self.sd or 0)


def seed_stat(values: Iterable[float | None]) -> SeedStat | None:
    """Return mean and deviation of the values that are neither missing nor infinite nor NaN.

    >>> seed_stat([1.0, 3.0, None])
    SeedStat(mean=2.0, sd=1.4142135623730951, count=2)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    deviation = stdev(known) if len(known) > 1 else None
    return SeedStat(fmean(known), deviation, len(known))


def over_runs(group: RunGroup, values: RunValues) -> dict[Any, SeedStat]:
    """Return the statistics of each key over a group's runs, in rising order of keys."""
    parts = [values(run) for run in group.runs]
    keys = set().union(*parts)
    stats: dict[Any, SeedStat] = {}
    for key in sorted(keys):
        stat = seed_stat(part.get(key) for part in parts)
        if stat:
            stats[key] = stat
    return stats


def final_scores(run: ReportRun, metric: str) -> dict[Width, float]:
    """Return the last score at each width."""
    scores: dict[Width, float] = {}
    for row in run.rows:
        for width, score in row["scores"].items():
            scores[Width(width)] = score[metric]
    return scores


def scored_widths(groups: Iterable[RunGroup]) -> list[Width]:
    """Return all widths at which any run was tested."""
    widths: set[Width] = set()
    for group in groups:
        for row in group.rows():
            widths.update(map(Width, row["scores"]))
    return sorted(widths)


def score_curve(run: ReportRun, metric: str, width: Width) -> dict[int, float]:
    """Return the scores at one width by the number of rounds done."""
    curve: dict[int, float] = {}
    for row in run.rows:
        score = row["scores"].get(str(width))
        if score is not None:
            curve[row["round"] + 1] = score[metric]
    return curve


def model_widths(run: ReportRun) -> list[Width]:
    """Return the widths of the models a run has trained."""
    return sorted({Width(row["target"]) for row in run.rows})


def loss_curve(run: ReportRun, target: Width) -> dict[int, float]:
    """Return the training loss of one model by round, smoothed and thinned out.

    Each point is the mean over the last twentieth of the rounds.
    """
    rounds: list[int] = []
    losses: list[float] = []
    for row in run.rows:
        if Width(row["target"]) == target and row["loss"] is not None:
            rounds.append(row["round"] + 1)
            losses.append(row["loss"])
    window = loss_window(run)
    every = max(1, len(losses) // LOSS_POINTS)
    curve: dict[int, float] = {}
    # Counted from the end, so that the last round is always drawn.
    first = (len(losses) - 1) % every
    for i in range(first, len(losses), every):
        curve[rounds[i]] = fmean(losses[max(0, i + 1 - window) : i + 1])
    return curve


def loss_window(run: ReportRun) -> int:
    """Return over how many rounds the training loss is averaged."""
    return max(1, run.config["num_rounds"] // 20)


def tier_scores(run: ReportRun, metric: str) -> dict[Width, float]:
    """Return the mean over the clients of each ceiling that have a model."""
    tiers: dict[Width, list[float]] = {}
    for client in _served_clients(run):
        tiers.setdefault(Width(client["ceiling"]), []).append(client[metric])
    return {ceiling: client_mean(scores, metric) for ceiling, scores in tiers.items()}


def client_means(run: ReportRun, metric: str) -> dict[str, float]:
    """Return the mean over all clients that have a model, and over the worst tenth (rounded up)."""
    scores = [client[metric] for client in _served_clients(run)]
    if not scores:
        return {}
    sign = 1 if metric == "accuracy" else -1

    def rank(score: float) -> float:
        return -math.inf if math.isnan(score) else sign * score  # NaN counts as the worst

    worst = sorted(scores, key=rank)[: decile_size(len(scores))]
    return {"all": client_mean(scores, metric), "worst": client_mean(worst, metric)}


def decile_size(num_clients: int) -> int:
    """Return how many clients are a tenth, rounded up."""
    return math.ceil(num_clients / 10)


def _served_clients(run: ReportRun) -> Iterator[dict[str, Any]]:
    """Yield the clients that can carry one of the models trained."""
    for client in run.clients.values():
        if client.get("width") is not None:
            yield client


def count_served(run: ReportRun) -> int:
    """Return how many clients can carry one of the models trained."""
    return sum(1 for _ in _served_clients(run))


def client_mean(scores: Sequence[float], metric: str) -> float:
    """Return the mean over clients; of perplexities the geometric one, that of the mean loss.

    >>> client_mean([2.0, 8.0], "accuracy"), round(client_mean([2.0, 8.0], "perplexity"), 9)
    (5.0, 4.0)
    """
    if metric == "accuracy":
        return fmean(scores)
    return math.exp(fmean(map(math.log, scores)))


def without_model(run: ReportRun) -> dict[str, int]:
    """Count by ceiling the clients that can carry none of the models trained."""
    counts: Counter[str] = Counter()
    for client in run.clients.values():
        if client.get("width") is None:
            counts[client.get("ceiling", "unknown")] += 1
    return counts


def client_costs(run: ReportRun, *fields: str) -> dict[Width, float]:
    """Return what a client of each ceiling spends in a round it takes part in."""
    spent: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    for row in run.rows:
        for ceiling, tier in row["tiers"].items():
            spent[ceiling] += sum(tier[field] for field in fields)
            clients[ceiling] += tier["clients"]
    return {Width(ceiling): spent[ceiling] / clients[ceiling] for ceiling in +clients}


@dataclass(frozen=True)
class ShellRow:
    """How often the units between a width and the one below were trained, in one model."""

    target: Width
    width: Width
    clients: float
    """Mean number of clients in a round."""
    rounds: int
    """Rounds in which any client trained it."""
    of_rounds: int

    @property
    def starving(self) -> bool:
        """Whether too few clients train it for its weights to be trusted."""
        return self.clients < 1 or 2 * self.rounds < self.of_rounds


def shell_rows(runs: Sequence[ReportRun]) -> list[ShellRow]:
    """Return every shell of every model, over the rounds of all runs."""
    rows = [row for run in runs for row in run.rows]
    known: set[Width] = set()
    for row in rows:
        known.update(map(Width, row["shells"]))
    counts: dict[tuple[Width, Width], list[int]] = {}
    for row in rows:
        target = Width(row["target"])
        # A round whose updates were all dropped lists no shells: nobody trained any of them.
        for width in {target, *(width for width in known if width <= target)}:
            counts.setdefault((target, width), []).append(row["shells"].get(str(width), 0))
    shells = []
    for (target, width), trained in sorted(counts.items()):
        rounds = sum(count > 0 for count in trained)
        shells.append(ShellRow(target, width, fmean(trained), rounds, len(trained)))
    return shells


def shell_means(run: ReportRun) -> dict[Width, float]:
    """Return the mean number of clients in a round that train each shell, over all its models."""
    parts: dict[Width, list[ShellRow]] = {}
    for shell in shell_rows([run]):
        parts.setdefault(shell.width, []).append(shell)
    means: dict[Width, float] = {}
    for width, shells in parts.items():
        trained = sum(shell.clients * shell.of_rounds for shell in shells)
        means[width] = trained / sum(shell.of_rounds for shell in shells)
    return means


def dropped_reasons(group: RunGroup) -> dict[str, int]:
    """Count the updates that were not used, by reason, the most frequent first."""
    return _count_reasons(group, "dropped")


def reduced_reasons(group: RunGroup) -> dict[str, int]:
    """Count the updates that hold less than was sent, by reason, the most frequent first."""
    return _count_reasons(group, "reduced")


def _count_reasons(group: RunGroup, key: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in group.rows():
        counts.update(map(drop_reason, row.get(key, {}).values()))
    return dict(counts.most_common())


def drop_reason(text: str) -> str:
    """Return why an update was dropped, without the time that is different for each client.

    >>> drop_reason("later than the deadline: 71.2 s")
    'later than the deadline'
    """
    return re.sub(r": [\d.,]+ (s|min|h)$", "", text)
