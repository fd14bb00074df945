"""Reads run folders and puts those that differ only in their seed together, under names that tell groups apart."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.experiments.runs import RunFolder, count_finished_models

FREE = {"seed", "recipe", "workers", "checkpoint_seconds", "log"}
"""Settings in which the runs of one group may differ: the seed, and what does not change results."""
NEEDED = ("name", "method", "metric", "num_rounds", "seed")
Config = dict[str, Any]


@dataclass(frozen=True)
class ReportRun:
    """One run folder, read."""

    path: Path
    config: Config
    env: dict[str, str]
    rows: list[dict[str, Any]]
    clients: dict[str, dict[str, Any]]
    """How each client of the test set does; empty until a model is fully trained."""
    models_done: int
    """How many of its models are trained to their last round, and tested."""

    @classmethod
    def read(cls, folder: RunFolder) -> "ReportRun":
        """Read a folder; rounds and client scores may still be missing."""
        config = folder.config
        missing = [key for key in NEEDED if key not in config]
        if missing:
            raise UserError(
                f"{folder.path}: is not the run of a federated experiment, it has no {missing[0]!r}"
            )
        rows = folder.metrics()
        tested = folder.has("clients.json")
        clients = folder.read_json("clients.json") if tested else {}
        done = count_finished_models(rows, config["num_rounds"]) if tested else 0
        return cls(folder.path, config, folder.env, rows, clients, done)

    @property
    def models(self) -> int:
        """How many models it trains, one after the other."""
        return len(self.config.get("targets", [1]))

    @property
    def finished(self) -> bool:
        """Whether all models are done."""
        return self.models_done == self.models

    @property
    def whole(self) -> "ReportRun":
        """The same run without the rounds of a model that is not done."""
        return replace(self, rows=[row for row in self.rows if row["stage"] < self.models_done])

    @property
    def recipe(self) -> str:
        """What the run was started from, or the experiment's name."""
        return str((self.config.get("recipe") or {}).get("name") or self.config["name"])

    @property
    def progress(self) -> str:
        """How far the run has come, in words."""
        if not self.rows:
            return "no round is done yet"
        last = self.rows[-1]
        which = (
            f" of model {last['stage'] + 1} of {self.models}, of width {last['target']},"
            if self.models > 1
            else ""
        )
        return f"{last['round'] + 1} of {self.config['num_rounds']} rounds{which} are done"


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed."""

    name: str
    all_runs: tuple[ReportRun, ...]

    @property
    def runs(self) -> tuple[ReportRun, ...]:
        """The runs that numbers are made of: unfinished ones would blur a mean over finished ones."""
        return tuple(run for run in self.all_runs if run.finished) or self.all_runs

    @property
    def settings(self) -> dict[str, str]:
        """What all runs of the group have in common, as text."""
        return _flat(group_settings(self.all_runs[0].config))

    @property
    def seeds(self) -> str:
        """The seeds, for a label."""
        return join_words(run.config["seed"] for run in self.runs)

    @property
    def models(self) -> int:
        """How many models a run trains, one after the other."""
        return len({row["stage"] for run in self.runs for row in run.rows})

    @property
    def rounds(self) -> str:
        """The rounds of a run: of one model, or models x rounds."""
        done = max((row["round"] + 1 for run in self.runs for row in run.rows), default=0)
        return f"{self.models} x {done}" if self.models > 1 else str(done)

    @property
    def repeated(self) -> list[Any]:
        """Seeds that occur more than once, which makes the deviation too small."""
        return [
            seed
            for seed, count in Counter(run.config["seed"] for run in self.runs).items()
            if count > 1
        ]


def group_runs(folders: Iterable[RunFolder]) -> list[RunGroup]:
    """Return the groups in the order in which they first occur; a folder given twice counts once."""
    distinct = {folder.path.resolve(): folder for folder in folders}
    if not distinct:
        raise UserError("there is nothing to draw: give at least one run folder")
    parts: dict[str, list[ReportRun]] = {}
    for folder in distinct.values():
        run = ReportRun.read(folder)
        parts.setdefault(json.dumps(group_settings(run.config), sort_keys=True), []).append(run)
    names = _names([runs[0].config for runs in parts.values()])
    return [
        RunGroup(name, tuple(sorted(runs, key=lambda run: (run.config["seed"], str(run.path)))))
        for name, runs in zip(names, parts.values(), strict=True)
    ]


def differing_settings(settings: Sequence[dict[str, str]]) -> list[str]:
    """Return the settings that are not the same in all of these."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]


def join_words(values: Iterable[object]) -> str:
    """Return distinct values in their order, with commas."""
    return ", ".join(dict.fromkeys(map(str, values)))


def run_commits(runs: Iterable[ReportRun]) -> str:
    """Return the commits that runs were made from, each once; a run that was resumed may name several."""
    return join_words(one for run in runs for one in run.env.get("commit", "unknown").split(", "))


def group_settings(config: Config) -> Config:
    """Return what tells groups apart; a setting that is null is one that an older run did not have yet."""
    return {key: value for key, value in config.items() if key not in FREE and value is not None}


def _flat(config: Config, prefix: str = "") -> dict[str, str]:
    """Return nested settings under dotted names, as text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _names(configs: list[Config]) -> list[str]:
    """Name each group by its method, then by the settings in which it differs from others of that method."""
    several = len({config["name"] for config in configs}) > 1
    names: list[str] = []
    for config in configs:
        peers = [
            _flat(group_settings(other)) for other in configs if other["method"] == config["method"]
        ]
        own = _flat(group_settings(config))
        extra = [
            f"{key} {_short(own.get(key, 'unset'))}"
            for key in differing_settings(peers)
            if key != "name"
        ]
        title = f"{config['name']} {config['method']}" if several else str(config["method"])
        names.append(f"{title} ({', '.join(extra)})" if extra else title)
    # Long values are cut short, so two names may still be the same.
    return [
        f"{name} #{names[:i].count(name) + 1}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def _short(text: str) -> str:
    return text if len(text) <= 28 else text[:27] + "…"
