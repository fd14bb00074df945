"""Where clients train: `fjord run --engine in-process | flower-sim | flower`, and `fjord app`."""

import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes.find import recipe_sources
from fjord.experiments.runner import OnRound
from fjord.experiments.runner import run_experiment as run_here

out = Console(highlight=False)
ENGINES = ("in-process", "flower-sim", "flower")


@dataclass(frozen=True)
class EngineChoice:
    """Where a run's clients train."""

    engine: str = "in-process"
    superlink: str | None = None
    deadline: float = 600.0
    min_replies: int = 1

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"--engine {self.engine}: allowed are {', '.join(ENGINES)}")
        if (self.superlink is None) == (self.engine == "flower"):
            raise UserError(
                "--engine flower needs --superlink NAME, a connection of Flower's config.toml; others do not"
            )
        if self.engine != "in-process":
            require_flower(f"--engine {self.engine}")

    def run(
        self,
        experiment: Experiment,
        folder: Path,
        recipe: dict[str, Any],
        resume: bool,
        on_round: OnRound,
    ) -> None:
        """Run an experiment of a recipe into a folder."""
        if self.engine == "in-process":
            run_here(experiment, folder, recipe=recipe, resume=resume, on_round=on_round)
        elif self.engine == "flower-sim":
            self._simulate(experiment, folder, recipe, resume, on_round)
        else:
            self._submit(folder, recipe, resume)

    def _simulate(
        self,
        experiment: Experiment,
        folder: Path,
        recipe: dict[str, Any],
        resume: bool,
        on_round: OnRound,
    ) -> None:
        from fjord.engines.flower import engine, simulation
        from fjord.experiments import flower_app as app

        order = engine.RunSpec(recipe["name"], tuple(recipe["set"]))
        patience = engine.ReplyPolicy(self.deadline, self.min_replies)
        simulation.run_simulation(
            lambda grid: app.serve(grid, order, patience, folder, resume=resume, on_round=on_round),
            app.client_of(),
            num_nodes=experiment.cohort_size,
            workers=experiment.workers,
        )

    def _submit(self, folder: Path, recipe: dict[str, Any], resume: bool) -> None:
        from fjord.engines.flower.submit import submit_run

        assert self.superlink is not None
        config = {
            "recipe": recipe["name"],
            "settings": shlex.join(recipe["set"]),
            "output": str(folder.resolve()),
            "resume": resume,
            "deadline": self.deadline,
            "min-replies": self.min_replies,
        }
        status = submit_run(self.superlink, config, recipe_sources(recipe["name"]))
        if status != "finished:completed":
            raise UserError(
                f"--superlink {self.superlink}: the run ended as {status}; its log says why"
            )


def require_flower(what: str) -> None:
    """Say what to install where Flower is missing."""
    if find_spec("flwr") is None:
        raise UserError(f"{what} needs Flower; install it with: {install_hint('flower')}")


def app(
    output: Annotated[Path, typer.Option(help="Where to write it.")] = Path("fjord-app"),
) -> None:
    """Write the Flower app, for people who start runs with Flower's own `flwr run`."""
    require_flower("fjord app")
    from fjord.engines.flower.submit import write_app

    write_app(output)
    out.print(f"Flower app: {output}", markup=False, soft_wrap=True)
    out.print(
        f"Run it: flwr run {shlex.quote(str(output))} SUPERLINK --stream "
        '--run-config \'recipe="demo" settings="num_rounds=3" output="/where/runs/go"\'',
        markup=False,
        soft_wrap=True,
    )
