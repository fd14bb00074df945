"""The run folder: configuration, environment, metrics. Figures are made from such folders alone."""

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: `config.json`, `env.json` and `metrics.jsonl`."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """Make the folder, write down what is run and where, and start the metrics anew."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "config.json").write_text(json.dumps(dict(config), indent=2, default=str) + "\n")
            (path / "env.json").write_text(json.dumps(environment(), indent=2) + "\n")
            (path / "metrics.jsonl").write_text("")
        except OSError as error:
            raise ValueError(f"run folder {path}: cannot be written: {error}") from error
        return cls(path)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(dict(row)) + "\n" for row in rows)

    @property
    def config(self) -> dict[str, Any]:
        """What was run."""
        loaded: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return loaded

    @property
    def env(self) -> dict[str, str]:
        """Where it was run, and from which commit."""
        loaded: dict[str, str] = json.loads((self.path / "env.json").read_text())
        return loaded

    def metrics(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]


def environment() -> dict[str, str]:
    """Return the versions and the commit that a result depends on."""
    return {
        "fjord": version("fjord-fl"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def _commit() -> str:
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"
    return done.stdout.strip()
