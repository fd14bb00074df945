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
        clients = {}
        models_done = 0
        if folder.has("clients.json"):
            clients = folder.read_json("clients.json")
            models_done = count_finished_models(rows, config["num_rounds"])
        return cls(
            path=folder.path,
            config=config,
            env=folder.env,
            rows=rows,
            clients=clients,
            models_done=models_done,
        )

    @property
    def models(self) -> int:
        """How many models it trains, one after the other."""
        targets = self.config.get("targets", [1])
        return len(targets)

    @property
    def finished(self) -> bool:
        """Whether all models are done."""
        return self.models_done == self.models

    @property
    def finished_part(self) -> "ReportRun":
        """The same run without the rounds of a model that is not done."""
        rows = []
        for row in self.rows:
            if row["stage"] < self.models_done:
                rows.append(row)
        return replace(self, rows=rows)

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.config["seed"])

    @property
    def recipe(self) -> str:
        """What the run was started from, or the experiment's name."""
        recipe = self.config.get("recipe") or {}
        name = recipe.get("name") or self.config["name"]
        return str(name)

    @property
    def progress(self) -> str:
        """How far the run has come, in words."""
        if not self.rows:
            return "no round is done yet"
        last = self.rows[-1]
        rounds_done = last["round"] + 1
        done = f"{rounds_done} of {self.config['num_rounds']} rounds"
        if self.models > 1:
            number = last["stage"] + 1
            width = last["target"]
            done += f" of model {number} of {self.models}, of width {width},"
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
        config = self.all_runs[0].config
        return _flatten_settings(group_settings(config))

    @property
    def seeds(self) -> str:
        """The seeds, for a label."""
        return join_words(run.config["seed"] for run in self.runs)

    @property
    def models(self) -> int:
        """How many models a run trains, one after the other."""
        stages = {row["stage"] for row in self.rows()}
        return len(stages)

    @property
    def rounds(self) -> str:
        """The rounds of a run: of one model, or models x rounds."""
        done = 0
        for row in self.rows():
            done = max(done, row["round"] + 1)
        if self.models > 1:
            return f"{self.models} x {done}"
        return str(done)

    @property
    def repeated_seeds(self) -> list[Any]:
        """Seeds that occur more than once, which makes the deviation too small."""
        counts = Counter(run.config["seed"] for run in self.runs)
        repeated = []
        for seed, count in counts.items():
            if count > 1:
                repeated.append(seed)
        return repeated


def group_runs(folders: Iterable[RunFolder]) -> list[RunGroup]:
    """Return the groups in the order in which they first occur; a repeated folder counts once."""
    distinct = {}
    for folder in folders:
        path = folder.path.resolve()
        distinct[path] = folder
    if not distinct:
        raise UserError("there is nothing to draw: give at least one run folder")
    parts: dict[str, list[ReportRun]] = {}
    for folder in distinct.values():
        run = ReportRun.read(folder)
        settings = group_settings(run.config)
        key = json.dumps(settings, sort_keys=True)
        same_settings = parts.setdefault(key, [])
        same_settings.append(run)
    configs = [runs[0].config for runs in parts.values()]
    names = _group_names(configs)
    groups = []
    for name, runs in zip(names, parts.values(), strict=True):
        runs.sort(key=_seed_and_path)
        groups.append(RunGroup(name, tuple(runs)))
    return groups


def _seed_and_path(run: ReportRun) -> tuple[Any, str]:
    return run.config["seed"], str(run.path)


def runs_of(groups: Iterable[RunGroup]) -> list[ReportRun]:
    """Return the runs that the numbers of some groups are made of."""
    runs: list[ReportRun] = []
    for group in groups:
        runs.extend(group.runs)
    return runs


def differing_settings(settings: Sequence[dict[str, str]]) -> list[str]:
    """Return the settings that are not the same in all of these."""
    # Values by their key; a dict keeps the order in which keys first occur.
    values: dict[str, set[str | None]] = {}
    for one in settings:
        for key in one:
            values[key] = set()
    for key, own in values.items():
        for one in settings:
            own.add(one.get(key))
    differing = []
    for key, own in values.items():
        if len(own) > 1:
            differing.append(key)
    return differing


def join_words(values: Iterable[object]) -> str:
    """Return distinct values in their order, with commas.

    >>> join_words([2, 1, 2])
    '2, 1'
    """
    texts = map(str, values)
    distinct = dict.fromkeys(texts)
    return ", ".join(distinct)


def run_commits(runs: Iterable[ReportRun]) -> str:
    """Return the commits of some runs, each once; a resumed run may name several."""
    commits: list[str] = []
    for run in runs:
        commit = run.env.get("commit", "unknown")
        commits += commit.split(", ")
    return join_words(commits)


def group_settings(config: Config) -> Config:
    """Return the settings that tell groups apart.

    A setting that is null is left out: older runs did not have it yet.
    """
    settings = {}
    for key, value in result_settings(config).items():
        if key != "seed" and value is not None:
            settings[key] = value
    return settings


def _flatten_settings(config: Config, prefix: str = "") -> dict[str, str]:
    """Return nested settings under dotted names, as text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = prefix + key
        if isinstance(value, dict):
            flat |= _flatten_settings(value, f"{name}.")
        elif isinstance(value, str):
            flat[name] = value
        else:
            flat[name] = json.dumps(value)
    return flat


def _group_names(configs: list[Config]) -> list[str]:
    """Name each group by its method, then by the settings in which it differs from its peers."""
    names = [_group_name(config, configs) for config in configs]
    distinct = []
    for i, name in enumerate(names):
        if names.count(name) > 1:  # long values are shortened, so two names may be the same
            number = names[:i].count(name) + 1
            distinct.append(f"{name} #{number}")
        else:
            distinct.append(name)
    return distinct


def _group_name(config: Config, configs: list[Config]) -> str:
    name = str(config["method"])
    experiments = {other["name"] for other in configs}
    if len(experiments) > 1:
        name = f"{config['name']} {name}"
    peers = []
    for other in configs:
        if other["method"] == config["method"]:
            peers.append(_flatten_settings(group_settings(other)))
    settings = _flatten_settings(group_settings(config))
    extra = []
    for key in differing_settings(peers):
        if key != "name":
            value = settings.get(key, "unset")
            extra.append(f"{key} {_shorten_text(value)}")
    if not extra:
        return name
    details = ", ".join(extra)
    return f"{name} ({details})"


def _shorten_text(text: str) -> str:
    if len(text) <= MAX_NAME:
        return text
    return text[: MAX_NAME - 1] + "…"
