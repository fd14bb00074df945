"""Metrics for TensorBoard and Weights & Biases, beside the run folder."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fjord.core.errors import SettingError
from fjord.core.extras import install_hint
from fjord.experiments.experiment import Experiment

ROUND_NUMBERS = (
    "loss",
    "lr",
    "examples",
    "macs",
    "seconds",
    "bytes_down",
    "bytes_up",
    "simulated_seconds",
)
TIER_NUMBERS = ("clients", "bytes_down", "bytes_up")


class MetricsWriter(Protocol):
    """Takes one row of metrics a round."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one row."""

    def close(self) -> None:
        """Finish."""


def dashboard_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row under the names they have in a dashboard."""
    scalars = {}
    for name in ROUND_NUMBERS:
        if row.get(name) is not None:
            scalars[f"train/{name}"] = row[name]
    for width, score in row["scores"].items():
        for name, value in score.items():
            scalars[f"{name}/width {width}"] = value
    for tier, numbers in row["tiers"].items():
        for name in TIER_NUMBERS:
            scalars[f"{name}/tier {tier}"] = numbers[name]
    return scalars


class _TensorBoardWriter:
    def __init__(self, experiment: Experiment, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing_package("tensorboard") from error
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        self.num_rounds = experiment.num_rounds

    def write(self, row: Mapping[str, Any]) -> None:
        step = row["stage"] * self.num_rounds + row["round"]
        for name, value in dashboard_scalars(row).items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _WandbWriter:
    def __init__(self, experiment: Experiment, folder: Path, first_step: int) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing_package("wandb") from error
        self.run = wandb.init(
            project="fjord",
            name=f"{experiment.name}-{experiment.seed}",
            dir=folder,
            config=experiment.config(),
        )
        self.num_rounds = experiment.num_rounds

    def write(self, row: Mapping[str, Any]) -> None:
        step = row["stage"] * self.num_rounds + row["round"]
        self.run.log(dashboard_scalars(row), step=step)

    def close(self) -> None:
        self.run.finish()


def _missing_package(name: str) -> SettingError:
    return SettingError(f"needs the package {name}: {install_hint('log')}", field="log", value=name)


WRITERS: dict[str, type[_TensorBoardWriter] | type[_WandbWriter]] = {
    "tensorboard": _TensorBoardWriter,
    "wandb": _WandbWriter,
}


@contextmanager
def open_dashboards(
    experiment: Experiment, folder: Path, first_step: int
) -> Iterator[list[MetricsWriter]]:
    """Open the writers an experiment asks for, from a step on, and close them at the end."""
    with ExitStack() as stack:
        writers: list[MetricsWriter] = []
        for name in experiment.log:
            writer = WRITERS[name](experiment, folder, first_step)
            stack.callback(writer.close)
            writers.append(writer)
        yield writers
