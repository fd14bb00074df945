"""A recipe run by Flower: what its server and its clients do, whatever carries the messages between them."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from fjord.devices.tiers import Varying
from fjord.engines.flower.client import Device, client_app
from fjord.engines.flower.engine import FlowerEngine, Grid, Order, Patience
from fjord.engines.flower.server import server_app
from fjord.federation import Federation, RoundRecord
from fjord.local import Trainer
from fjord.recipes.find import apply_settings, find_recipe
from fjord.runner import MakeEngine, OnRound, run
from fjord.runs import RunFolder


def serve(
    grid: Grid,
    order: Order,
    patience: Patience,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
) -> RunFolder:
    """Run a recipe into a folder, its clients on the nodes of a Grid."""
    experiment = apply_settings(find_recipe(order.recipe)(), order.settings)
    known = {"name": order.recipe, "set": list(order.settings)}
    engine = engines(grid, order, patience)
    return run(experiment, folder, recipe=known, resume=resume, on_round=on_round, engine=engine)


def engines(grid: Grid, order: Order, patience: Patience) -> MakeEngine:
    """Return what makes the engine of each model of a run."""

    def make(federation: Federation, trainer: Trainer, stage: int) -> FlowerEngine:
        smallest = federation.space.widths[0]
        engine = FlowerEngine(grid, trainer, federation.data.test, replace(order, stage=stage), patience, smallest)
        federation.devices = Varying(federation.devices, lambda client, _, usual: engine.nodes.lowered(client, usual))
        return engine

    return make


@lru_cache(maxsize=1)
def device(order: Order) -> Device:
    """Build what a client needs to train, the experiment's model and data, once in each process."""
    # Who carries how little is the server's to say: a device need not have that file.
    experiment = replace(apply_settings(find_recipe(order.recipe)(), order.settings), load=None)
    federation = next(islice(experiment.federations(), order.stage, None))
    return Device(federation.trainer(), federation.places, federation.space)


def _main(grid: Grid, config: Mapping[str, Any]) -> None:
    """Run what a `flwr run` asks for."""
    order = Order(config["recipe"], tuple(shlex.split(config["settings"])))
    patience = Patience(float(config["deadline"]), int(config["min-replies"]))
    folder = Path(config["output"] or RunFolder.free(Path("runs") / Path(order.recipe).stem / "flower")).resolve()
    print(f"Run folder: {folder}", flush=True)
    serve(grid, order, patience, folder, resume=bool(config["resume"]), on_round=_tell)


def _tell(record: RoundRecord, done: int, total: int) -> None:
    scores = ", ".join(f"{width}: {score.accuracy:.1%}" for width, score in record.scores.items())
    counts = f"{record.engine['answered']:g} of {record.engine['sent']:g} answered, {len(record.dropped)} dropped"
    print(f"round {done} of {total}: {counts}, {record.seconds:.1f} s{f'; {scores}' if scores else ''}", flush=True)


server = server_app(_main)
client = client_app(device)
"""What the app that `fjord app` writes is made of."""
