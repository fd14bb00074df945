"""Where clients train: `fjord run --engine in-process | flower-sim | flower`, and `fjord app`."""

import shlex
from collections.abc import Sequence
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
from fjord.experiments.runner import OnRound, run_experiment

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
            allowed = ", ".join(ENGINES)
            raise UserError(f"must be one of {allowed}", field="engine", value=self.engine)
        if self.engine == "flower" and self.superlink is None:
            reason = (
                "is needed by --engine flower: the name of a connection in Flower's config.toml"
            )
            raise UserError(reason, field="superlink")
        if self.engine != "flower" and self.superlink is not None:
            raise UserError("needs --engine flower", field="superlink", value=self.superlink)
        if self.engine.startswith("flower"):
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
            run_experiment(
                experiment,
                folder,
                recipe=recipe,
                resume=resume,
                on_round=on_round,
            )
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
        from fjord.engines.flower.engine import Grid, ReplyPolicy
        from fjord.engines.flower.run_spec import RunSpec
        from fjord.engines.flower.simulation import run_simulation
        from fjord.experiments import flower_app

        spec = RunSpec(recipe["name"], tuple(recipe["set"]))
        policy = ReplyPolicy(self.deadline, self.min_replies)

        def serve(grid: Grid) -> None:
            flower_app.serve_run(
                grid,
                spec,
                policy,
                folder,
                resume=resume,
                on_round=on_round,
            )

        run_simulation(
            serve,
            flower_app.client_of(),
            num_nodes=experiment.cohort_size,
            workers=experiment.workers,
        )

    def _submit(
        self,
        folder: Path,
        recipe: dict[str, Any],
        resume: bool,
    ) -> None:
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
            reason = f"ended the run as {status}; its log says why"
            raise UserError(reason, field="superlink", value=self.superlink)


def require_flower(what: str, *, modules: Sequence[str] = ("flwr",)) -> None:
    """Raise an error that says what to install if Flower, or what comes with it, is missing."""
    for module in modules:
        if find_spec(module) is None:
            hint = install_hint("flower")
            raise UserError(f"{what} needs Flower; install it with: {hint}")


def write_flower_app(
    output: Annotated[Path, typer.Option(help="Where to write it.")] = Path("fjord-app"),
) -> None:
    """Write the Flower app, for people who start runs with Flower's own `flwr run`."""
    require_flower("fjord app")
    from fjord.engines.flower.submit import write_app

    write_app(output)
    config = 'recipe="demo" settings="num_rounds=3" output="/where/runs/go"'
    command = f"flwr run {shlex.quote(str(output))} SUPERLINK --stream --run-config '{config}'"
    out.print(f"Flower app: {output}", markup=False, soft_wrap=True)
    out.print(f"Run it: {command}", markup=False, soft_wrap=True)
