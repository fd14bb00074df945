"""The numbers behind the page: means and deviations over seeds of scores, costs and shells."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fjord.core.width import Width
from fjord.report.groups import ReportRun, RunGroup


@dataclass(frozen=True)
class SeedStat:
    """A mean over runs, and the sample standard deviation if there are two runs or more."""

    mean: float
    sd: float | None
    count: int


def seed_stat(values: Iterable[float | None]) -> SeedStat | None:
    """Return mean and deviation of the values that are known and finite.

    >>> seed_stat([1.0, 3.0, None])
    Stat(mean=2.0, sd=1.4142135623730951, count=2)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    return SeedStat(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


def over_runs(
    group: RunGroup, values: Callable[[ReportRun], Mapping[Any, float]]
) -> dict[Any, SeedStat]:
    """Return the statistics of each key over a group's runs, in rising order of keys."""
    parts = [values(run) for run in group.runs]
    found = {
        key: seed_stat(part.get(key) for part in parts)
        for key in sorted({key for part in parts for key in part})
    }
    return {key: one for key, one in found.items() if one}


def final_scores(run: ReportRun, metric: str) -> dict[Width, float]:
    """Return the last score at each width."""
    return {Width(w): score[metric] for row in run.rows for w, score in row["scores"].items()}


def score_curve(run: ReportRun, metric: str, width: Width) -> dict[int, float]:
    """Return the scores at one width by the number of rounds done."""
    return {
        row["round"] + 1: row["scores"][str(width)][metric]
        for row in run.rows
        if str(width) in row["scores"]
    }


def model_widths(run: ReportRun) -> list[Width]:
    """Return the widths of the models a run has trained."""
    return sorted({Width(row["target"]) for row in run.rows})


def loss_curve(run: ReportRun, target: Width, points: int = 300) -> dict[int, float]:
    """Return the training loss of one model, as a running mean over a twentieth of its rounds, thinned out."""
    known = [
        (r["round"] + 1, r["loss"])
        for r in run.rows
        if Width(r["target"]) == target and r["loss"] is not None
    ]
    window = loss_window(run)
    every = max(1, len(known) // points)
    return {
        known[i][0]: fmean(loss for _, loss in known[max(0, i + 1 - window) : i + 1])
        for i in range(len(known))
        if (len(known) - 1 - i) % every == 0
    }


def loss_window(run: ReportRun) -> int:
    """Return over how many rounds the training loss is averaged."""
    return max(1, run.config["num_rounds"] // 20)


def tier_scores(run: ReportRun, metric: str) -> dict[Width, float]:
    """Return the mean over the clients of each ceiling that have a model."""
    tiers: dict[Width, list[float]] = {}
    for client in run.clients.values():
        if client.get("width") is not None:
            tiers.setdefault(Width(client["ceiling"]), []).append(client[metric])
    return {ceiling: client_mean(scores, metric) for ceiling, scores in tiers.items()}


def client_means(run: ReportRun, metric: str) -> dict[str, float]:
    """Return the mean over all clients that have a model, and over the worst tenth of them (rounded up)."""
    scores = [client[metric] for client in run.clients.values() if client.get("width") is not None]
    if not scores:
        return {}
    sign = 1 if metric == "accuracy" else -1
    # What is not a number is the worst there is.
    worst_first = sorted(scores, key=lambda score: -math.inf if math.isnan(score) else sign * score)
    worst = worst_first[: math.ceil(len(scores) / 10)]
    return {"all": client_mean(scores, metric), "worst": client_mean(worst, metric)}


def client_mean(scores: Sequence[float], metric: str) -> float:
    """Return the mean over clients; of perplexities the geometric one, which is that of the mean loss.

    >>> client_mean([2.0, 8.0], "accuracy"), round(client_mean([2.0, 8.0], "perplexity"), 9)
    (5.0, 4.0)
    """
    return fmean(scores) if metric == "accuracy" else math.exp(fmean(map(math.log, scores)))


def without_model(run: ReportRun) -> dict[str, int]:
    """Count by ceiling the clients that can carry none of the models trained."""
    return Counter(
        c.get("ceiling", "unknown") for c in run.clients.values() if c.get("width") is None
    )


def client_costs(run: ReportRun, *fields: str) -> dict[Width, float]:
    """Return what a client of each ceiling spends in a round it takes part in."""
    totals: dict[str, list[float]] = {}
    for row in run.rows:
        for ceiling, tier in row["tiers"].items():
            total = totals.setdefault(ceiling, [0, 0])
            total[0] += sum(tier[field] for field in fields)
            total[1] += tier["clients"]
    return {
        Width(ceiling): spent / clients for ceiling, (spent, clients) in totals.items() if clients
    }


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
    known = {Width(width) for run in runs for row in run.rows for width in row["shells"]}
    counts: dict[tuple[Width, Width], list[int]] = {}
    for row in (row for run in runs for row in run.rows):
        target = Width(row["target"])
        # A round whose updates were all dropped lists no shells: nobody trained any of them.
        for width in {target} | {width for width in known if width <= target}:
            counts.setdefault((target, width), []).append(row["shells"].get(str(width), 0))
    return [
        ShellRow(target, width, fmean(trained), sum(n > 0 for n in trained), len(trained))
        for (target, width), trained in sorted(counts.items())
    ]


def shell_means(run: ReportRun) -> dict[Width, float]:
    """Return the mean number of clients in a round that train each shell, over all models that have it."""
    found: dict[Width, list[ShellRow]] = {}
    for shell in shell_rows([run]):
        found.setdefault(shell.width, []).append(shell)
    return {
        width: sum(s.clients * s.of_rounds for s in parts) / sum(s.of_rounds for s in parts)
        for width, parts in found.items()
    }


def dropped_reasons(group: RunGroup) -> dict[str, int]:
    """Count the updates that were not used, by reason, the most frequent first."""
    return _reasons(group, "dropped")


def reduced_reasons(group: RunGroup) -> dict[str, int]:
    """Count the updates that hold less than was sent, by reason, the most frequent first."""
    return _reasons(group, "reduced")


def _reasons(group: RunGroup, key: str) -> dict[str, int]:
    found = (
        drop_reason(why)
        for run in group.runs
        for row in run.rows
        for why in row.get(key, {}).values()
    )
    return dict(Counter(found).most_common())


def drop_reason(why: str) -> str:
    """Return why an update was dropped, without the time that is different for each client.

    >>> reason("later than the deadline: 71.2 s")
    'later than the deadline'
    """
    return re.sub(r": [\d.,]+ (s|min|h)$", "", why)
