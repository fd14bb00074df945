"""Read run folders, and group those that differ only in their seed under names of their own."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.experiments.runs import RunFolder, count_finished_models, result_settings

NEEDED = ("name", "method", "metric", "num_rounds", "seed")
MAX_NAME = 28
"""Letters of a setting that are shown in the name of a group."""
Config = dict[str, Any]


@dataclass(frozen=True)
class ReportRun:
    """The content of one run folder."""

    path: Path
    config: Config
    env: dict[str, str]
    rows: list[dict[str, Any]]
    clients: dict[str, dict[str, Any]]
    """The scores of each client of the test set; empty until a model is fully trained."""
    models_done: int
    """How many of its models are trained to their last round, and tested."""

    @classmethod
    def read(cls, folder: RunFolder) -> "ReportRun":
        """Read a folder; rounds and client scores may still be missing."""
        config = folder.config
        for key in NEEDED:
            if key not in config:
                raise UserError(
                    f"{folder.path}: is not the run of a federated experiment, it has no {key!r}"
                )
        rows = folder.metrics()
        if folder.has("clients.json"):
            clients = folder.read_json("clients.json")
            models_done = count_finished_models(rows, config["num_rounds"])
        else:
            clients = {}
            models_done = 0
        return cls(folder.path, config, folder.env, rows, clients, models_done)

    @property
    def models(self) -> int:
        """How many models it trains, one after the other."""
        return len(self.config.get("targets", [1]))

    @property
    def finished(self) -> bool:
        """Whether all models are done."""
        return self.models_done == self.models

    @property
    def finished_part(self) -> "ReportRun":
        """The same run without the rounds of a model that is not done."""
        rows = [row for row in self.rows if row["stage"] < self.models_done]
        return replace(self, rows=rows)

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.config["seed"])

    @property
    def recipe(self) -> str:
        """What the run was started from, or the experiment's name."""
        recipe = self.config.get("recipe") or {}
        return str(recipe.get("name") or self.config["name"])

    @property
    def progress(self) -> str:
        """How far the run has come, in words."""
        if not self.rows:
            return "no round is done yet"
        last = self.rows[-1]
        done = f"{last['round'] + 1} of {self.config['num_rounds']} rounds"
        if self.models > 1:
            model = f"model {last['stage'] + 1} of {self.models}, of width {last['target']},"
            done = f"{done} of {model}"
        return f"{done} are done"


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed."""

    name: str
    all_runs: tuple[ReportRun, ...]

    @property
    def runs(self) -> tuple[ReportRun, ...]:
        """The runs that numbers are made of: the finished ones, or all if none is.

        Unfinished runs would blur a mean over finished ones.
        """
        finished = tuple(run for run in self.all_runs if run.finished)
        return finished or self.all_runs

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rounds of all runs."""
        for run in self.runs:
            yield from run.rows

    @property
    def settings(self) -> dict[str, str]:
        """What all runs of the group have in common, as text."""
        return _flatten(group_settings(self.all_runs[0].config))

    @property
    def seeds(self) -> str:
        """The seeds, for a label."""
        return join_words(run.config["seed"] for run in self.runs)

    @property
    def models(self) -> int:
        """How many models a run trains, one after the other."""
        return len({row["stage"] for row in self.rows()})

    @property
    def rounds(self) -> str:
        """The rounds of a run: of one model, or models x rounds."""
        done = max((row["round"] + 1 for row in self.rows()), default=0)
        return f"{self.models} x {done}" if self.models > 1 else str(done)

    @property
    def repeated_seeds(self) -> list[Any]:
        """Seeds that occur more than once, which makes the deviation too small."""
        counts = Counter(run.config["seed"] for run in self.runs)
        return [seed for seed, count in counts.items() if count > 1]


def group_runs(folders: Iterable[RunFolder]) -> list[RunGroup]:
    """Return the groups in the order in which they first occur; a repeated folder counts once."""
    distinct = {folder.path.resolve(): folder for folder in folders}
    if not distinct:
        raise UserError("there is nothing to draw: give at least one run folder")
    parts: dict[str, list[ReportRun]] = {}
    for folder in distinct.values():
        run = ReportRun.read(folder)
        key = json.dumps(group_settings(run.config), sort_keys=True)
        parts.setdefault(key, []).append(run)
    names = _group_names([runs[0].config for runs in parts.values()])
    groups = []
    for name, runs in zip(names, parts.values(), strict=True):
        runs.sort(key=lambda run: (run.config["seed"], str(run.path)))
        groups.append(RunGroup(name, tuple(runs)))
    return groups


def runs_of(groups: Iterable[RunGroup]) -> list[ReportRun]:
    """Return the runs that the numbers of some groups are made of."""
    return [run for group in groups for run in group.runs]


def differing_settings(settings: Sequence[dict[str, str]]) -> list[str]:
    """Return the settings that are not the same in all of these."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]


def join_words(values: Iterable[object]) -> str:
    """Return distinct values in their order, with commas.

    >>> join_words([2, 1, 2])
    '2, 1'
    """
    return ", ".join(dict.fromkeys(map(str, values)))


def run_commits(runs: Iterable[ReportRun]) -> str:
    """Return the commits of some runs, each once; a resumed run may name several."""
    commits: list[str] = []
    for run in runs:
        commits += run.env.get("commit", "unknown").split(", ")
    return join_words(commits)


def group_settings(config: Config) -> Config:
    """Return the settings that tell groups apart.

    A setting that is null is left out: older runs did not have it yet.
    """
    settings = result_settings(config)
    settings.pop("seed", None)
    return {key: value for key, value in settings.items() if value is not None}


def _flatten(config: Config, prefix: str = "") -> dict[str, str]:
    """Return nested settings under dotted names, as text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            flat[prefix + key] = value
        else:
            flat[prefix + key] = json.dumps(value)
    return flat


def _group_names(configs: list[Config]) -> list[str]:
    """Name each group by its method, then by the settings in which it differs from its peers."""
    names = [_group_name(config, configs) for config in configs]
    distinct = []
    for i, name in enumerate(names):
        if names.count(name) > 1:  # long values are shortened, so two names may be the same
            distinct.append(f"{name} #{names[:i].count(name) + 1}")
        else:
            distinct.append(name)
    return distinct


def _group_name(config: Config, configs: list[Config]) -> str:
    name = str(config["method"])
    if len({other["name"] for other in configs}) > 1:
        name = f"{config['name']} {name}"
    peers = [other for other in configs if other["method"] == config["method"]]
    own = _flatten(group_settings(config))
    differing = differing_settings([_flatten(group_settings(peer)) for peer in peers])
    extra = [f"{key} {_shorten(own.get(key, 'unset'))}" for key in differing if key != "name"]
    return f"{name} ({', '.join(extra)})" if extra else name


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"
