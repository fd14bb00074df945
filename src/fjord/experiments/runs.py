"""The run folder: configuration, environment, metrics, checkpoint. Figures are made from such folders alone."""

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
from fjord.core.tensor_files import read_tensors, write_tensors


class RunExistsError(UserError):
    """A folder already holds a run."""


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: `config.json`, `env.json`, `metrics.jsonl` and, for what can be resumed, a checkpoint."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """Make the folder, write down what is run and where; a folder that holds a run is never written over."""
        folder, draft = cls(path), path / f".config.{os.getpid()}.tmp"
        with folder.writing():
            path.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(dict(config), indent=2, default=str) + "\n")
            try:
                os.link(
                    draft, path / "config.json"
                )  # claims the folder: of two runs that start at once one fails
            except FileExistsError:
                raise RunExistsError(
                    f"run folder {path}: already holds a run; resume it, or choose another folder"
                ) from None
            finally:
                draft.unlink()
            (path / "metrics.jsonl").touch()
        folder.write_json("env.json", describe_environment())
        return folder

    @classmethod
    def next_free_path(cls, path: Path) -> Path:
        """Return the path, or with a number at its end if a run lies there already."""
        taken, number = path, 1
        while (taken / "config.json").exists():
            number += 1
            taken = path.with_name(f"{path.name}-{number}")
        return taken

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
        """Keep other processes from running in this folder meanwhile; with its process, a claim ends."""
        claim = FileLock(self.path / ".lock", timeout=0)
        with self.writing():
            try:
                claim.acquire()
            except Timeout:
                raise UserError(
                    f"run folder {self.path}: another process runs in this folder; wait for it, or end it"
                ) from None
        try:
            yield
        finally:
            claim.release()

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, whole or not at all."""
        draft = self.path / f".{name}.tmp"
        with self.writing():
            draft.write_text(json.dumps(value, indent=2, default=str) + "\n")
            os.replace(draft, self.path / name)

    def has(self, name: str) -> bool:
        """Say whether the folder has a file, as it is or packed."""
        return (self.path / name).exists() or (self.path / f"{name}.gz").exists()

    def _text(self, name: str) -> str:
        """Read a file as it is or, in a folder of results that was made small, unpack it."""
        packed = self.path / f"{name}.gz"
        if packed.exists() and not (self.path / name).exists():
            return gzip.decompress(packed.read_bytes()).decode()
        return (self.path / name).read_text()

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the folder."""
        try:
            return json.loads(self._text(name))
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: there is no {name}; is this the folder of a run?"
            ) from None
        except (OSError, json.JSONDecodeError) as error:
            raise UserError(f"{self.path / name}: cannot be read: {error}") from error

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of metrics."""
        with self.writing(), (self.path / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(dict(row)) + "\n" for row in rows)

    def keep_rows(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop rows that came after a checkpoint, and a last line that was cut short."""
        rows = [row for row in self.metrics() if wanted(row)]
        draft = self.path / ".metrics.jsonl.tmp"
        with self.writing():
            draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.replace(draft, self.path / "metrics.jsonl")

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
        """Return all whole rows."""
        try:
            lines = self._text("metrics.jsonl").splitlines(keepends=True)
        except FileNotFoundError:  # killed before the first row
            return []
        except OSError as error:
            raise UserError(f"{self.path}: has no readable metrics.jsonl: {error}") from error
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def save_checkpoint(self, tensors: dict[str, Tensor], info: Mapping[str, Any]) -> None:
        """Write a checkpoint in place of the last one, whole or not at all."""
        write_tensors(self.checkpoint, tensors, {"run": json.dumps(dict(info))})

    def load_for_resume(self, num_rounds: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a run goes on from, and add to its environment the one it goes on in.

        Without a checkpoint that is the first model. A folder that was made small has metrics of whole models, whose
        weights are elsewhere: it goes on with the next, and a checkpoint says so before its metrics are touched.
        """
        if not self.checkpoint.exists():
            packed = (self.path / "metrics.jsonl.gz").exists() and not (
                self.path / "metrics.jsonl"
            ).exists()
            stage = count_finished_models(self.metrics(), num_rounds) if packed else 0
            self.save_checkpoint({}, {"stage": stage, "round": 0, "epoch": 0})
        known = self.env if self.has("env.json") else {}
        self.write_json(
            "env.json",
            {key: _also(known.get(key), value) for key, value in describe_environment().items()},
        )
        tensors, metadata = read_tensors(self.checkpoint)
        return tensors, json.loads(metadata["run"])


def _also(known: str | None, value: str) -> str:
    """Add a value to those that are known.

    >>> _also("2.13.0, 2.14.0", "2.13.0"), _also("c8a38cc", "50cdd1e"), _also(None, "x86_64")
    ('2.13.0, 2.14.0', 'c8a38cc, 50cdd1e', 'x86_64')
    """
    return ", ".join(dict.fromkeys([*(known.split(", ") if known else ()), value]))


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
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
    }


def _commit() -> str:
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"
    return done.stdout.strip()
