"""A recipe run by Flower: what its server and its clients do, whatever carries the messages between them."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fjord.devices.tiers import VaryingDevices
from fjord.engines.flower.client import ClientApp, ClientRuntime, client_app
from fjord.engines.flower.engine import FlowerEngine, Grid, ReplyPolicy, RunSpec
from fjord.engines.flower.server import ServerApp, server_app
from fjord.experiments.profiling.profile import profile_federation, uses_distillation
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runner import MakeEngine, OnRound, run_experiment
from fjord.experiments.runs import RunFolder
from fjord.federated.rounds import Federation, RoundRecord
from fjord.training.local import ClientTrainer


def serve(
    grid: Grid,
    order: RunSpec,
    patience: ReplyPolicy,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    sent: Path | None = None,
) -> RunFolder:
    """Run a recipe into a folder, its clients on the nodes of a Grid; `sent` may hold the recipe's files."""
    experiment = apply_settings(find_recipe(order.recipe, sent)(), order.settings)
    known = {"name": order.recipe, "set": list(order.settings)}
    engine = engines(grid, order, patience)
    return run_experiment(
        experiment, folder, recipe=known, resume=resume, on_round=on_round, engine=engine
    )


def engines(grid: Grid, order: RunSpec, patience: ReplyPolicy) -> MakeEngine:
    """Return what makes the engine of each model of a run."""

    def make(federation: Federation, trainer: ClientTrainer, stage: int) -> FlowerEngine:
        mine = replace(order, stage=stage)
        engine = FlowerEngine(grid, trainer, federation.data.test, mine, patience, federation.space)
        federation.devices = VaryingDevices(
            federation.devices, lambda client, _, usual: engine.nodes.lowered(client, usual)
        )
        return engine

    return make


@lru_cache(maxsize=1)
def device(order: RunSpec, sent: Path | None = None) -> ClientRuntime:
    """Build what a client needs to train, the experiment's model and data, once in each process."""
    # Who carries how little is the server's to say: a device need not have that file.
    experiment = replace(
        apply_settings(find_recipe(order.recipe, sent)(), order.settings), load=None
    )
    federation = experiment.federation(order.stage, order.known)
    measure = partial(
        profile_federation, federation, kd=uses_distillation(federation), name=order.recipe
    )
    profile = lambda examples: measure(examples=examples)  # noqa: E731
    return ClientRuntime(federation.trainer(), federation.places, federation.space, profile)


def server_of(sent: Path | None = None) -> ServerApp:
    """Return the server's side of an app; the folder `sent` may hold its recipe's files."""
    return server_app(partial(_main, sent=sent))


def client_of(sent: Path | None = None) -> ClientApp:
    """Return the devices' side."""
    return client_app(partial(device, sent=sent))


def _main(grid: Grid, config: Mapping[str, Any], sent: Path | None) -> None:
    """Run what a `flwr run` asks for."""
    order = RunSpec(config["recipe"], tuple(shlex.split(config["settings"])))
    patience = ReplyPolicy(float(config["deadline"]), int(config["min-replies"]))
    folder = Path(
        config["output"]
        or RunFolder.next_free_path(Path("runs") / Path(order.recipe).stem / "flower")
    ).resolve()
    print(f"Run folder: {folder}", flush=True)
    serve(grid, order, patience, folder, resume=bool(config["resume"]), on_round=_tell, sent=sent)


def _tell(record: RoundRecord, done: int, total: int) -> None:
    scores = ", ".join(f"{width}: {score.accuracy:.1%}" for width, score in record.scores.items())
    counts = f"{record.engine['answered']:g} of {record.engine['sent']:g} answered, {len(record.dropped)} dropped"
    print(
        f"round {done} of {total}: {counts}, {record.seconds:.1f} s{f'; {scores}' if scores else ''}",
        flush=True,
    )
