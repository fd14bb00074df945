"""A recipe run by Flower: what its server and its clients do, whatever carries the messages."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fjord.devices.profile import DeviceProfile
from fjord.engines.flower.client import ClientApp, ClientRuntime, client_app
from fjord.engines.flower.engine import FlowerEngine, Grid, ReplyPolicy
from fjord.engines.flower.run_spec import RunSpec
from fjord.engines.flower.server import ServerApp, server_app
from fjord.experiments.experiment import Experiment
from fjord.experiments.profiling.profile import profile_federation, uses_distillation
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runner import MakeEngine, OnRound, run_experiment
from fjord.experiments.runs import RunFolder
from fjord.federated.records import RoundRecord
from fjord.federated.rounds import Federation


def serve_run(
    grid: Grid,
    spec: RunSpec,
    policy: ReplyPolicy,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    sent: Path | None = None,
) -> RunFolder:
    """Run a recipe into a folder, its clients on the nodes of a Grid.

    The folder `sent` may hold the recipe's files.
    """
    return run_experiment(
        make_experiment(spec, sent),
        folder,
        recipe={"name": spec.recipe, "set": list(spec.settings)},
        resume=resume,
        on_round=on_round,
        engine=flower_engines(grid, spec, policy),
    )


def make_experiment(spec: RunSpec, sent: Path | None = None) -> Experiment:
    """Return the experiment that a specification names."""
    recipe = find_recipe(spec.recipe, sent)
    return apply_settings(recipe(), spec.settings)


def flower_engines(grid: Grid, spec: RunSpec, policy: ReplyPolicy) -> MakeEngine:
    """Return what makes the engine of each model of a run."""

    def make_engine(federation: Federation, stage: int) -> FlowerEngine:
        return FlowerEngine(grid, federation, replace(spec, stage=stage), policy)

    return make_engine


@lru_cache(maxsize=1)
def make_runtime(spec: RunSpec, sent: Path | None = None) -> ClientRuntime:
    """Build what a client needs to train, the experiment's model and data, once in each process."""
    # What devices can carry is the server's to say: a device need not have the file of loads.
    experiment = replace(make_experiment(spec, sent), load=None)
    federation = experiment.federation(spec.stage, spec.known_model)
    return ClientRuntime(
        trainer=federation.trainer(),
        slice_index=federation.slice_index,
        space=federation.space,
        profile=_profiler(federation, spec.recipe),
    )


def _profiler(federation: Federation, name: str) -> Callable[[int | None], DeviceProfile]:
    def profile(examples: int | None) -> DeviceProfile:
        kd = uses_distillation(federation)
        return profile_federation(federation, kd=kd, name=name, examples=examples)

    return profile


def server_of(sent: Path | None = None) -> ServerApp:
    """Return the server's side of an app; the folder `sent` may hold its recipe's files."""
    return server_app(partial(_run_server, sent=sent))


def client_of(sent: Path | None = None) -> ClientApp:
    """Return the devices' side."""
    return client_app(partial(make_runtime, sent=sent))


def _run_server(grid: Grid, config: Mapping[str, Any], sent: Path | None) -> None:
    """Run what a `flwr run` asks for."""
    spec = RunSpec(config["recipe"], tuple(shlex.split(config["settings"])))
    policy = ReplyPolicy(float(config["deadline"]), int(config["min-replies"]))
    folder = config["output"]
    if not folder:
        folder = RunFolder.next_free_path(Path("runs") / Path(spec.recipe).stem / "flower")
    folder = Path(folder).resolve()
    print(f"Run folder: {folder}", flush=True)
    resume = bool(config["resume"])
    serve_run(grid, spec, policy, folder, resume=resume, on_round=_print_round, sent=sent)


def _print_round(record: RoundRecord, done: int, total: int) -> None:
    answered = f"{record.engine['answered']:g} of {record.engine['sent']:g} answered"
    text = f"round {done} of {total}: {answered}, {len(record.dropped)} dropped"
    text += f", {record.seconds:.1f} s"
    if record.scores:
        scores = [f"{width}: {score.accuracy:.1%}" for width, score in record.scores.items()]
        text += f"; {', '.join(scores)}"
    print(text, flush=True)
