"""The run folder: configuration, environment, metrics, checkpoint.

Figures and reports are made from such folders alone.
"""

import gzip
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.files import draft_path, write_text
from fjord.core.tensor_files import read_tensors, write_tensors
from fjord.experiments.central import CentralExperiment
from fjord.experiments.experiment import Experiment
from fjord.experiments.settings import default_settings, free_settings

Config = Mapping[str, Any]
"""What config.json holds."""
FREE_SETTINGS = {"recipe"} | free_settings(Experiment) | free_settings(CentralExperiment)
"""What a configuration has that does not affect results."""


class RunExistsError(UserError):
    """A folder already holds a run."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, with `config.json`, `env.json` and `metrics.jsonl`.

    A run that can be resumed has a checkpoint as well.
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: Config) -> "RunFolder":
        """Make the folder, and write down what is run and where.

        A folder that holds a run is never written over.
        """
        folder = cls(path)
        with folder.writing():
            path.mkdir(parents=True, exist_ok=True)
            folder._claim(config)
            (path / "metrics.jsonl").touch()
        folder.write_json("env.json", describe_environment())
        return folder

    def _claim(self, config: Config) -> None:
        """Write the configuration; of two runs that start at once, one fails."""
        config_file = self.path / "config.json"
        draft = draft_path(config_file)
        write_text(draft, _json_text(dict(config)))
        try:
            os.link(draft, config_file)
        except FileExistsError:
            raise RunExistsError(
                f"run folder {self.path}: already holds a run; resume it, or choose another folder"
            ) from None
        finally:
            draft.unlink()

    @classmethod
    def next_free_path(cls, path: Path) -> Path:
        """Return the path, or with a number at its end if a run lies there already."""
        candidate = path
        number = 1
        while (candidate / "config.json").exists():
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
        return candidate

    @property
    def checkpoint(self) -> Path:
        """Where the latest checkpoint lies."""
        return self.path / "checkpoint.safetensors"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a failure of the disk into one clear error."""
        try:
            yield
        except OSError as error:
            raise UserError(f"run folder {self.path}: cannot be written: {error}") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from running in this folder; a lock ends with its process."""
        file_lock = FileLock(self.path / ".lock", timeout=0)
        with self.writing():
            try:
                file_lock.acquire()
            except Timeout:
                raise UserError(
                    f"run folder {self.path}: another process runs in this folder; "
                    "wait for it, or end it"
                ) from None
        try:
            yield
        finally:
            file_lock.release()

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, whole or not at all."""
        with self.writing():
            write_text(self.path / name, _json_text(value))

    def remove_drafts(self) -> None:
        """Remove the files that a killed process left half written."""
        for draft in self.path.glob(".*.tmp"):
            draft.unlink()

    def has(self, name: str) -> bool:
        """Say whether the folder has a file, as it is or compressed."""
        return (self.path / name).exists() or self.is_compressed(name)

    def is_compressed(self, name: str) -> bool:
        """Say whether a file is only there compressed, as in a folder of published results."""
        compressed = self.path / f"{name}.gz"
        return compressed.exists() and not (self.path / name).exists()

    def _read_text(self, name: str) -> str:
        if self.is_compressed(name):
            compressed = (self.path / f"{name}.gz").read_bytes()
            return gzip.decompress(compressed).decode()
        return (self.path / name).read_text()

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the folder."""
        try:
            return json.loads(self._read_text(name))
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: there is no {name}; is this the folder of a run?"
            ) from None
        except (OSError, json.JSONDecodeError) as error:
            raise UserError(f"{self.path / name}: cannot be read: {error}") from error

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of metrics."""
        with self.writing(), (self.path / "metrics.jsonl").open("a") as file:
            file.write(_lines_of_json(rows))

    def keep_rows(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the other rows of metrics, and a last line that is incomplete."""
        rows = filter(wanted, self.metrics())
        with self.writing():
            write_text(self.path / "metrics.jsonl", _lines_of_json(rows))

    def keep_rows_before(self, stage: int, round_index: int) -> None:
        """Drop the rows of metrics from one round of one model on."""
        first = (stage, round_index)
        self.keep_rows(lambda row: (row["stage"], row["round"]) < first)

    @property
    def config(self) -> dict[str, Any]:
        """What was run."""
        loaded: dict[str, Any] = self.read_json("config.json")
        return loaded

    @property
    def env(self) -> dict[str, str]:
        """Where it was run, and from which commit."""
        loaded: dict[str, str] = self.read_json("env.json")
        return loaded

    def metrics(self) -> list[dict[str, Any]]:
        """Return all complete rows."""
        try:
            text = self._read_text("metrics.jsonl")
        except FileNotFoundError:  # killed before the first row
            return []
        except OSError as error:
            raise UserError(f"{self.path}: has no readable metrics.jsonl: {error}") from error
        lines = text.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def save_checkpoint(self, tensors: dict[str, Tensor], info: Mapping[str, Any]) -> None:
        """Write a checkpoint in place of the last one, whole or not at all."""
        write_tensors(self.checkpoint, tensors, {"run": json.dumps(dict(info))})

    def load_for_resume(self, num_rounds: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the last checkpoint, and add the present environment to the run's.

        Without a checkpoint the run starts with its first model. A folder of published results
        has metrics of whole models without their weights: it goes on with the next model, and a
        checkpoint says so before the metrics are touched.
        """
        if not self.checkpoint.exists():
            stage = 0
            if self.is_compressed("metrics.jsonl"):
                stage = count_finished_models(self.metrics(), num_rounds)
            self.save_checkpoint({}, {"stage": stage, "round": 0, "epoch": 0})
        self._extend_environment()
        tensors, metadata = read_tensors(self.checkpoint)
        return tensors, json.loads(metadata["run"])

    def _extend_environment(self) -> None:
        before = self.env if self.has("env.json") else {}
        environment = {}
        for key, value in describe_environment().items():
            environment[key] = _joined_values(before.get(key), value)
        self.write_json("env.json", environment)


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _lines_of_json(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(dict(row)) + "\n" for row in rows)


def _joined_values(before: str | None, value: str) -> str:
    """Add a value to a list of values, if it is new.

    >>> _joined_values("2.13.0, 2.14.0", "2.13.0"), _joined_values("c8a38cc", "50cdd1e")
    ('2.13.0, 2.14.0', 'c8a38cc, 50cdd1e')
    >>> _joined_values(None, "x86_64")
    'x86_64'
    """
    values = before.split(", ") if before else []
    if value not in values:
        values.append(value)
    return ", ".join(dict.fromkeys(values))


@dataclass(frozen=True)
class SettingChange:
    """A setting that affects results, and differs between two configurations."""

    name: str
    old: Any
    new: Any


def result_settings(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that affects results, the seed included.

    >>> result_settings({"lr": 0.1, "workers": 2, "seed": 0, "recipe": {"name": "demo"}})
    {'lr': 0.1, 'seed': 0}
    """
    return {name: value for name, value in config.items() if name not in FREE_SETTINGS}


def changed_settings(old: Config, new: Config, kind: type = Experiment) -> list[SettingChange]:
    """Return the settings by which two configurations are different experiments, by name.

    A setting of the dataclass `kind` that is younger than the old configuration had its default.

    >>> changed_settings({"lr": 0.1, "workers": 2}, {"lr": 0.2, "workers": 1, "average": "holders"})
    [SettingChange(name='lr', old=0.1, new=0.2)]
    """
    before = {}
    for name, default in default_settings(kind).items():
        if name in new:
            before[name] = default
    before = result_settings(before | dict(old))
    after = result_settings(new)
    changes = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            changes.append(SettingChange(name, before.get(name), after.get(name)))
    return changes


def check_same_experiment(folder: RunFolder, config: Config, kind: type = Experiment) -> None:
    """Refuse to resume another experiment than the one that was started in the folder."""
    changes = changed_settings(folder.config, config, kind)
    if changes:
        first = changes[0]
        raise UserError(
            f"{folder.path}: was begun with {first.name}={first.old}, "
            f"the recipe now says {first.new}; run it into a new folder"
        )


def count_finished_models(rows: Iterable[Mapping[str, Any]], num_rounds: int) -> int:
    """Count the models that rows of metrics follow to their last round.

    >>> count_finished_models([{"round": 0}, {"round": 1}, {"round": 0}], num_rounds=2)
    1
    """
    return sum(row["round"] + 1 == num_rounds for row in rows)


def describe_environment() -> dict[str, str]:
    """Return the versions and the commit that a result depends on."""
    return {
        "fjord": version("fjord-fl"),
        "commit": _describe_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
    }


def _describe_commit() -> str:
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"
    return done.stdout.strip()
