"""What models trained in changing parts lack when they are whole: `python -m reproduction whole-models RUN_FOLDER`.

Scores every model of a run of `fd`, `efd` or `fedrolex` on its test set as trained, and mended, without training:

statistics  where there is BatchNorm: its statistics, which the server averaged over parts of a network, are measured
            anew on training examples of the first clients
scale       where there is none: a weight that reads units of which clients held a share is multiplied by that share, so
            that it reads as much as in training; this is what dropout does in tests
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fjord
from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.data.federated import FederatedData
from fjord.devices.tiers import usual_devices
from fjord.elastic.recalibrate import has_statistics
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from fjord.federated.rounds import Federation
from fjord.training.evaluate import ExampleScores, score_examples

OUT, BATCH, CLIENTS = Console(highlight=False), 250, 10
METHODS = ("fd", "efd", "fedrolex")


def inputs(data: FederatedData) -> Iterator[Tensor]:
    """Yield batches of training examples as they are seen in tests."""
    for client in range(CLIENTS):
        yield from (data.prepare(part, None) for part in data.examples(client)[0].split(BATCH))


def score(model: fjord.ElasticModel, data: FederatedData, width: Width) -> str:
    """Return the score of a model on the test set, as text."""
    (parts,) = score_examples(model.eval(), data.test, [width], BATCH).values()
    found = ExampleScores.join(parts).score()
    return f"{found.accuracy:.2%}, perplexity {found.perplexity:.4g}"


def held_share(federation: Federation, width: Width) -> float:
    """Return the share of a model's units that a client holds, in the mean over clients."""
    if federation.method.name == "fd":
        return float(min(federation.lowest, width) / width)
    devices = usual_devices(federation.devices)
    ceilings = (
        federation.allocator.usable_ceiling(i, devices.ceiling(i, 0)) for i in range(federation.data.num_clients)
    )
    return fmean(float(min(ceiling, width) / width) for ceiling in ceilings)


@torch.no_grad()
def scale(model: fjord.ElasticModel, share: float) -> None:
    """Multiply each weight matrix whose second axis, its inputs, are units that may be left out."""
    state = model.state_dict()
    for name in {name for (name, axis) in model.plan.families_of if axis == 1}:
        state[name].mul_(share)
    model.load_state_dict(state)


def whole_models(
    folder: Annotated[Path, typer.Argument(help="A run of fd, efd or fedrolex, with its weights.")],
) -> None:
    """Score the models of a run as trained, and with what they lack as whole models mended."""
    torch.set_num_threads(1)
    recipe = RunFolder(folder).config["recipe"]
    experiment = apply_settings(find_recipe(recipe["name"])(), recipe["set"])
    federation = next(iter(experiment.federations()))
    if federation.method.name not in METHODS:
        raise UserError(
            f"{folder}: is a run of {federation.method.name}; parts that change are trained in {METHODS} only"
        )
    if not (paths := sorted(folder.glob("model*.safetensors"))):
        raise UserError(
            f"{folder}: has no weights (results keep none); `fjord run` makes a folder that has them"
        )
    table = Table("model", "as trained", "mended", "by", title=str(folder))
    for path in paths:
        model = fjord.load_model(path, experiment.model)
        (width,), data = model.space.widths, federation.data
        before = score(model, data, width)
        if has_statistics(model):
            fjord.recalibrate(model, width, inputs(data))
            how = "statistics"
        else:
            share = held_share(federation, width)
            scale(model, share)
            how = f"scale {share:.2f}"
        table.add_row(str(width), before, score(model, data, width), how)
    OUT.print(table)
