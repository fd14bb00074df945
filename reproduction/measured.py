"""Scores of a curve's runs in points, of which more is better: per cent or negative perplexity."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.experiments.runs import RunFolder
from fjord.report import numbers
from fjord.report.groups import ReportRun, group_settings
from fjord.report.numbers import SeedStat
from reproduction.curves import FigureCurve, PaperTask, run_place

Points = Mapping[Width, Mapping[int, float]]
"""Scores by width, then by seed."""
MAX_LOSS = 700.0
"""A larger one has no perplexity that a float can hold."""


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve of a task, over the seeds that have at least one finished model."""

    task: PaperTask
    curve: FigureCurve
    runs: Mapping[int, ReportRun]
    """By seed."""

    @property
    def finished(self) -> "MeasuredCurve":
        """The same curve over the seeds that have all their models."""
        runs = {seed: run for seed, run in self.runs.items() if run.finished}
        return replace(self, runs=runs)

    @property
    def missing_models(self) -> str:
        """How many models the unfinished seeds have, in words."""
        parts = []
        for seed, run in self.runs.items():
            if not run.finished:
                parts.append(f"seed {seed} has {run.models_done} of {run.models} models")
        return "; ".join(parts)

    @property
    def seed_count(self) -> str:
        """How many seeds it has, for a label."""
        finished = len(self.finished.runs)
        unfinished = len(self.runs) - finished
        return f"{finished} + {unfinished} in part" if unfinished else str(finished)

    @property
    def metric(self) -> str:
        """What is scored: accuracy or perplexity."""
        return str(self._first_run.config["metric"])

    @property
    def rounds(self) -> int:
        """The rounds, or epochs, of a model."""
        return int(self._first_run.config["num_rounds"])

    @property
    def _first_run(self) -> ReportRun:
        return next(iter(self.runs.values()))

    @property
    def points(self) -> Points:
        """The last scores."""
        points: dict[Width, dict[int, float]] = {}
        for seed, run in self.runs.items():
            for width, score in self._final_points(run).items():
                points.setdefault(width, {})[seed] = score
        return dict(sorted(points.items()))

    def _final_points(self, run: ReportRun) -> dict[Width, float]:
        if self.curve.reads == "random":
            draws = run.rows[-1].get("random", {})
            return {Width(w): _mean_of_draws(one, self.metric) for w, one in draws.items()}
        scores = numbers.final_scores(run, self.metric)
        return {width: as_points(score, self.metric) for width, score in scores.items()}

    @property
    def stats(self) -> dict[Width, SeedStat]:
        """Mean and deviation over seeds at each width."""
        return seed_stats(self.points)

    def curve_at(self, width: Width, metric: str = "loss") -> dict[int, dict[int, float]]:
        """Return a test score by the number of rounds done, then by seed."""
        curve: dict[int, dict[int, float]] = {}
        for seed, run in self.runs.items():
            for rounds_done, value in numbers.score_curve(run, metric, width).items():
                curve.setdefault(rounds_done, {})[seed] = value
        return dict(sorted(curve.items()))

    @property
    def folders(self) -> str:
        """The run folders under RUNS, as text."""
        return folder_text(run_place(self.task, self.curve), self.runs)


def seed_stats(values: Mapping[Any, Mapping[int, float]]) -> dict[Any, SeedStat]:
    """Return mean and deviation over seeds at each place."""
    stats: dict[Any, SeedStat] = {}
    for place, by_seed in values.items():
        stat = numbers.seed_stat(by_seed.values())
        if stat:
            stats[place] = stat
    return stats


def folder_text(place: str, seeds: Iterable[int]) -> str:
    """Return the folders of some seeds as one text.

    >>> folder_text("cifar10/fjord", [0, 2]), folder_text("cifar10/fjord", [1])
    ('cifar10/fjord/{0,2}', 'cifar10/fjord/1')
    """
    names = [str(seed) for seed in seeds]
    if len(names) == 1:
        return f"{place}/{names[0]}"
    return f"{place}/{{{','.join(names)}}}"


def as_points(score: float, metric: str) -> float:
    """Return a score in points, of which more is better."""
    return 100 * score if metric == "accuracy" else -score


def _mean_of_draws(draws: Mapping[str, list[float]], metric: str) -> float:
    """Return the mean over submodels of random units; of perplexities the geometric one."""
    if metric == "accuracy":
        return as_points(fmean(draws["accuracy"]), metric)
    loss = min(fmean(draws["loss"]), MAX_LOSS)
    return as_points(math.exp(loss), metric)


def measure_curve(
    task: PaperTask, curve: FigureCurve, runs: Path
) -> tuple[MeasuredCurve | None, list[str]]:
    """Read the runs of a curve: its finished models, and how far unfinished runs are."""
    place = run_place(task, curve)
    finished: dict[int, ReportRun] = {}
    unfinished: list[str] = []
    for path in _seed_folders(runs / place):
        run = ReportRun.read(RunFolder(path))
        if not run.finished:
            unfinished.append(f"{place}/{path.name}: {run.progress}")
        if run.models_done:
            finished[run.seed] = run.finished_part
    if not finished:
        return None, unfinished
    _check_same_settings(finished.values())
    return MeasuredCurve(task, curve, dict(sorted(finished.items()))), unfinished


def _seed_folders(folder: Path) -> list[Path]:
    """Return the run folders of a curve, in the order of their seeds."""
    paths = [path.parent for path in folder.glob("*/config.json")]
    numbered = [path for path in paths if path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name))


def _check_same_settings(runs: Iterable[ReportRun]) -> None:
    """Refuse seeds that were run with different settings."""
    paths: dict[str, Path] = {}
    for run in runs:
        paths[json.dumps(group_settings(run.config), sort_keys=True)] = run.path
    if len(paths) > 1:
        first, second, *_ = paths.values()
        raise UserError(f"{first} and {second}: differ in more than their seed; move one away")
