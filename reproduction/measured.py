"""What the runs of a curve came to, in points of which more is better: per cent, or negative perplexity."""

import json
import math
from collections.abc import Mapping
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
"""By width, then by seed."""


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve of a task, over the seeds that have a model that is done."""

    task: PaperTask
    curve: FigureCurve
    runs: Mapping[int, ReportRun]
    """By seed."""

    @property
    def finished(self) -> "MeasuredCurve":
        """The same curve over the seeds that have all their models."""
        return replace(self, runs={seed: run for seed, run in self.runs.items() if run.finished})

    @property
    def lacking(self) -> str:
        """Which models the others have, in words."""
        parts = [run for run in self.runs.values() if not run.finished]
        return "; ".join(
            f"seed {run.config['seed']} has {run.models_done} of {run.models} models"
            for run in parts
        )

    @property
    def count(self) -> str:
        """How many seeds it has, for a label."""
        whole, parts = len(self.finished.runs), len(self.runs) - len(self.finished.runs)
        return f"{whole} + {parts} in part" if parts else str(whole)

    @property
    def metric(self) -> str:
        """What is scored: accuracy or perplexity."""
        return str(next(iter(self.runs.values())).config["metric"])

    @property
    def points(self) -> Points:
        """The last scores."""
        by_seed = {seed: self._scores(run) for seed, run in self.runs.items()}
        widths = sorted({width for scores in by_seed.values() for width in scores})
        return {
            w: {seed: scores[w] for seed, scores in by_seed.items() if w in scores} for w in widths
        }

    def _scores(self, run: ReportRun) -> dict[Width, float]:
        if self.curve.reads == "random":
            return {
                Width(w): _random(draws, self.metric)
                for w, draws in run.rows[-1].get("random", {}).items()
            }
        return {
            width: as_points(score, self.metric)
            for width, score in numbers.final_scores(run, self.metric).items()
        }

    @property
    def stats(self) -> dict[Width, SeedStat]:
        """Mean and deviation over seeds at each width."""
        found = {width: numbers.seed_stat(values.values()) for width, values in self.points.items()}
        return {width: stat for width, stat in found.items() if stat}

    def curve_at(self, width: Width, metric: str = "loss") -> dict[int, dict[int, float]]:
        """Return a test score by the number of rounds done, then by seed."""
        found: dict[int, dict[int, float]] = {}
        for seed, run in self.runs.items():
            for done, value in numbers.score_curve(run, metric, width).items():
                found.setdefault(done, {})[seed] = value
        return dict(sorted(found.items()))

    @property
    def folders(self) -> str:
        """The run folders under RUNS, as text."""
        return folder_text(run_place(self.task, self.curve), self.runs)

    @property
    def rounds(self) -> int:
        """The rounds, or epochs, of a model."""
        return int(next(iter(self.runs.values())).config["num_rounds"])


def folder_text(place: str, seeds: Mapping[int, Any] | list[int]) -> str:
    """Return the folders of some seeds as one text.

    >>> folder_text("cifar10/fjord", [0, 2]), folder_text("cifar10/fjord", [1])
    ('cifar10/fjord/{0,2}', 'cifar10/fjord/1')
    """
    names = ",".join(map(str, seeds))
    return f"{place}/{{{names}}}" if len(seeds) > 1 else f"{place}/{names}"


def as_points(score: float, metric: str) -> float:
    """Return a score in points, of which more is better."""
    return 100 * score if metric == "accuracy" else -score


def _random(draws: Mapping[str, list[float]], metric: str) -> float:
    """Return the mean over submodels of random units; of perplexities the geometric one."""
    score = (
        fmean(draws["accuracy"])
        if metric == "accuracy"
        else math.exp(min(fmean(draws["loss"]), 700.0))
    )
    return as_points(score, metric)


def measure_curve(
    task: PaperTask, curve: FigureCurve, runs: Path
) -> tuple[MeasuredCurve | None, list[str]]:
    """Read the runs of a curve: the models that are done, of the same settings, and how far unfinished runs are."""
    read = [ReportRun.read(RunFolder(path)) for path in _seeds(runs / run_place(task, curve))]
    left = [
        f"{run_place(task, curve)}/{run.path.name}: {run.progress}"
        for run in read
        if not run.finished
    ]
    done = {int(run.config["seed"]): run.finished_part for run in read if run.models_done}
    settings = {
        json.dumps(group_settings(run.config), sort_keys=True): run.path for run in done.values()
    }
    if len(settings) > 1:
        names = " and ".join(map(str, list(settings.values())[:2]))
        raise UserError(f"{names}: differ in more than their seed; move one away")
    return (MeasuredCurve(task, curve, dict(sorted(done.items()))) if done else None), left


def _seeds(folder: Path) -> list[Path]:
    found = [path.parent for path in folder.glob("*/config.json") if path.parent.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))
