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
        if self.sd is None:
            return self.mean
        return self.mean + self.sd


def seed_stat(values: Iterable[float | None]) -> SeedStat | None:
    """Return mean and deviation of the values that are neither missing nor infinite nor NaN.

    >>> seed_stat([1.0, 3.0, None])
    SeedStat(mean=2.0, sd=1.4142135623730951, count=2)
    """
    finite = []
    for value in values:
        if value is not None and math.isfinite(value):
            finite.append(value)
    if not finite:
        return None
    mean = fmean(finite)
    deviation = None
    if len(finite) > 1:
        deviation = stdev(finite)
    return SeedStat(mean, deviation, len(finite))


def over_runs(group: RunGroup, values: RunValues) -> dict[Any, SeedStat]:
    """Return the statistics of each key over a group's runs, in rising order of keys."""
    parts = [values(run) for run in group.runs]
    keys: set[Any] = set()
    for part in parts:
        keys.update(part)
    stats = {}
    for key in sorted(keys):
        of_runs = [part.get(key) for part in parts]
        stat = seed_stat(of_runs)
        if stat:
            stats[key] = stat
    return stats


def final_scores(run: ReportRun, metric: str) -> dict[Width, float]:
    """Return the last score at each width."""
    scores: dict[Width, float] = {}
    for row in run.rows:
        for name, score in row["scores"].items():
            width = Width(name)
            scores[width] = score[metric]
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
    name = str(width)
    for row in run.rows:
        score = row["scores"].get(name)
        if score is not None:
            rounds_done = row["round"] + 1
            curve[rounds_done] = score[metric]
    return curve


def model_widths(run: ReportRun) -> list[Width]:
    """Return the widths of the models a run has trained."""
    widths = {Width(row["target"]) for row in run.rows}
    return sorted(widths)


def loss_curve(run: ReportRun, target: Width) -> dict[int, float]:
    """Return the training loss of one model by round, smoothed and thinned out.

    Each point is the mean over the last twentieth of the rounds.
    """
    rounds: list[int] = []
    losses: list[float] = []
    for row in run.rows:
        if Width(row["target"]) != target or row["loss"] is None:
            continue
        rounds.append(row["round"] + 1)
        losses.append(row["loss"])
    window = loss_window(run)
    every = max(1, len(losses) // LOSS_POINTS)
    curve: dict[int, float] = {}
    # Counted from the end, so that the last round is always drawn.
    first = (len(losses) - 1) % every
    for i in range(first, len(losses), every):
        end = i + 1
        start = max(0, end - window)
        done = rounds[i]
        curve[done] = fmean(losses[start:end])
    return curve


def loss_window(run: ReportRun) -> int:
    """Return over how many rounds the training loss is averaged."""
    twentieth = run.config["num_rounds"] // 20
    return max(1, twentieth)


def tier_scores(run: ReportRun, metric: str) -> dict[Width, float]:
    """Return the mean over the clients of each ceiling that have a model."""
    tiers: dict[Width, list[float]] = {}
    for client in _served_clients(run):
        ceiling = Width(client["ceiling"])
        scores = tiers.setdefault(ceiling, [])
        scores.append(client[metric])
    means: dict[Width, float] = {}
    for ceiling, scores in tiers.items():
        means[ceiling] = client_mean(scores, metric)
    return means


def client_means(run: ReportRun, metric: str) -> dict[str, float]:
    """Return the mean over all clients that have a model, and over the worst tenth (rounded up)."""
    scores = [client[metric] for client in _served_clients(run)]
    if not scores:
        return {}
    worst_first = _sort_worst_first(scores, metric)
    decile = decile_size(len(scores))
    return {
        "all": client_mean(scores, metric),
        "worst": client_mean(worst_first[:decile], metric),
    }


def _sort_worst_first(scores: Sequence[float], metric: str) -> list[float]:
    """Return scores from the worst to the best; NaN counts as the worst."""

    def goodness(score: float) -> float:
        if math.isnan(score):
            return -math.inf
        if metric == "accuracy":
            return score
        return -score

    return sorted(scores, key=goodness)


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
    served = list(_served_clients(run))
    return len(served)


def client_mean(scores: Sequence[float], metric: str) -> float:
    """Return the mean over clients; of perplexities the geometric one, that of the mean loss.

    >>> client_mean([2.0, 8.0], "accuracy"), round(client_mean([2.0, 8.0], "perplexity"), 9)
    (5.0, 4.0)
    """
    if metric == "accuracy":
        return fmean(scores)
    mean_loss = fmean(map(math.log, scores))
    return math.exp(mean_loss)


def without_model(run: ReportRun) -> dict[str, int]:
    """Count by ceiling the clients that can carry none of the models trained."""
    counts: Counter[str] = Counter()
    for client in run.clients.values():
        if client.get("width") is None:
            ceiling = client.get("ceiling", "unknown")
            counts[ceiling] += 1
    return counts


def client_costs(run: ReportRun, *fields: str) -> dict[Width, float]:
    """Return what a client of each ceiling spends in a round it takes part in."""
    spent: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    for row in run.rows:
        for ceiling, tier in row["tiers"].items():
            clients[ceiling] += tier["clients"]
            for field in fields:
                spent[ceiling] += tier[field]
    costs: dict[Width, float] = {}
    for ceiling, count in clients.items():
        if count > 0:
            width = Width(ceiling)
            costs[width] = spent[ceiling] / count
    return costs


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
        if self.clients < 1:
            return True
        return 2 * self.rounds < self.of_rounds


def shell_rows(runs: Sequence[ReportRun]) -> list[ShellRow]:
    """Return every shell of every model, over the rounds of all runs."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        rows.extend(run.rows)
    shells = []
    counts_of_shells = _shell_counts(rows)
    for target, width in sorted(counts_of_shells):
        counts = counts_of_shells[target, width]
        rounds_without = counts.count(0)
        shell = ShellRow(
            target=target,
            width=width,
            clients=fmean(counts),
            rounds=len(counts) - rounds_without,
            of_rounds=len(counts),
        )
        shells.append(shell)
    return shells


def _shell_counts(rows: Sequence[dict[str, Any]]) -> dict[tuple[Width, Width], list[int]]:
    """Return how many clients trained each shell of each model, round by round."""
    all_widths: set[Width] = set()
    for row in rows:
        all_widths.update(map(Width, row["shells"]))
    counts: dict[tuple[Width, Width], list[int]] = {}
    for row in rows:
        target = Width(row["target"])
        # A round whose updates were all dropped lists no shells: nobody trained any of them.
        for width in all_widths | {target}:
            if width > target:
                continue
            count = row["shells"].get(str(width), 0)
            by_round = counts.setdefault((target, width), [])
            by_round.append(count)
    return counts


def shell_means(run: ReportRun) -> dict[Width, float]:
    """Return the mean number of clients in a round that train each shell, over all its models."""
    parts: dict[Width, list[ShellRow]] = {}
    shells = shell_rows([run])
    for shell in shells:
        same_width = parts.setdefault(shell.width, [])
        same_width.append(shell)
    means: dict[Width, float] = {}
    for width, same_width in parts.items():
        trained = [shell.clients * shell.of_rounds for shell in same_width]
        rounds = [shell.of_rounds for shell in same_width]
        means[width] = sum(trained) / sum(rounds)
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
        messages = row.get(key, {})
        for message in messages.values():
            reason = drop_reason(message)
            counts[reason] += 1
    return dict(counts.most_common())


def drop_reason(text: str) -> str:
    """Return why an update was dropped, without the time that is different for each client.

    >>> drop_reason("later than the deadline: 71.2 s")
    'later than the deadline'
    """
    return re.sub(r": [\d.,]+ (s|min|h)$", "", text)
