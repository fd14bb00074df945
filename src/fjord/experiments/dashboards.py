"""Metrics for TensorBoard and Weights & Biases, beside the run folder."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.experiments.experiment import Experiment


class MetricsWriter(Protocol):
    """Takes one row of metrics a round."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one row."""

    def close(self) -> None:
        """Finish."""


def dashboard_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row under the names they have in a dashboard."""
    names = (
        "loss",
        "lr",
        "examples",
        "macs",
        "seconds",
        "bytes_down",
        "bytes_up",
        "simulated_seconds",
    )
    found = {f"train/{name}": row[name] for name in names if row.get(name) is not None}
    for width, score in row["scores"].items():
        found |= {f"{name}/width {width}": value for name, value in score.items()}
    for tier, numbers in row["tiers"].items():
        found |= {
            f"{name}/tier {tier}": numbers[name] for name in ("clients", "bytes_down", "bytes_up")
        }
    return found


class _TensorBoard:
    def __init__(self, experiment: Experiment, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                f"log=tensorboard needs the package tensorboard: {install_hint('log')}"
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        self.num_rounds = experiment.num_rounds

    def write(self, row: Mapping[str, Any]) -> None:
        for name, value in dashboard_scalars(row).items():
            self.writer.add_scalar(name, value, row["stage"] * self.num_rounds + row["round"])

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    def __init__(self, experiment: Experiment, folder: Path, first_step: int) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(f"log=wandb needs the package wandb: {install_hint('log')}") from error
        self.run = wandb.init(
            project="fjord",
            name=f"{experiment.name}-{experiment.seed}",
            dir=folder,
            config=experiment.config(),
        )
        self.num_rounds = experiment.num_rounds

    def write(self, row: Mapping[str, Any]) -> None:
        self.run.log(dashboard_scalars(row), step=row["stage"] * self.num_rounds + row["round"])

    def close(self) -> None:
        self.run.finish()


@contextmanager
def open_dashboards(
    experiment: Experiment, folder: Path, first_step: int
) -> Iterator[list[MetricsWriter]]:
    """Open the writers an experiment asks for, from a step on, and close them at the end."""
    kinds: dict[str, type[_TensorBoard] | type[_Wandb]] = {
        "tensorboard": _TensorBoard,
        "wandb": _Wandb,
    }
    with ExitStack() as stack:
        found: list[MetricsWriter] = []
        for name in experiment.log:
            writer = kinds[name](experiment, folder, first_step)
            stack.callback(writer.close)
            found.append(writer)
        yield found
