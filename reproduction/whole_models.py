"""What models that were trained in changing parts lack as a whole, and two corrections.

`python -m reproduction whole-models RUN_FOLDER` scores every model of a run of `fd`, `efd` or
`fedrolex` on its test set, as trained and corrected, without training:

statistics  with BatchNorm: its statistics, which the server averaged over parts of a network, are
            measured again on training examples of the first clients
scale       without BatchNorm: a weight that reads units of which clients held a share is multiplied
            by that share, so that it reads as much as in training, as dropout does in tests
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

BATCH_SIZE = 250
NUM_CLIENTS = 10
"""Clients whose training examples the statistics are measured on."""
METHODS = ("fd", "efd", "fedrolex")
out = Console(highlight=False)


def training_inputs(data: FederatedData) -> Iterator[Tensor]:
    """Yield batches of training examples, prepared as in tests."""
    for client in range(NUM_CLIENTS):
        examples = data.examples(client)[0]
        for part in examples.split(BATCH_SIZE):
            yield data.prepare(part, None)


def score_model(model: fjord.ElasticModel, data: FederatedData, width: Width) -> str:
    """Return the score of a model on the test set, as text."""
    (parts,) = score_examples(model.eval(), data.test, [width], BATCH_SIZE).values()
    score = ExampleScores.join(parts).score()
    return f"{score.accuracy:.2%}, perplexity {score.perplexity:.4g}"


def held_share(federation: Federation, width: Width) -> float:
    """Return the share of a model's units that a client holds, averaged over clients."""
    if federation.method.name == "fd":
        return float(min(federation.lowest, width) / width)
    devices = usual_devices(federation.devices)
    shares = []
    for client in range(federation.data.num_clients):
        ceiling = federation.allocator.usable_ceiling(client, devices.ceiling(client, 0))
        shares.append(float(min(ceiling, width) / width))
    return fmean(shares)


@torch.no_grad()
def scale_inputs(model: fjord.ElasticModel, share: float) -> None:
    """Multiply each weight matrix whose second axis, its inputs, are units that may be dropped."""
    state = model.state_dict()
    names = {name for name, axis in model.plan.families_of if axis == 1}
    for name in names:
        state[name].mul_(share)
    model.load_state_dict(state)


def whole_models(
    folder: Annotated[Path, typer.Argument(help="A run of fd, efd or fedrolex, with its weights.")],
) -> None:
    """Score the models of a run as trained, and corrected for having been trained in parts."""
    torch.set_num_threads(1)
    recipe = RunFolder(folder).config["recipe"]
    experiment = apply_settings(find_recipe(recipe["name"])(), recipe["set"])
    federation = next(iter(experiment.federations()))
    paths = sorted(folder.glob("model*.safetensors"))
    _check_run(folder, federation.method.name, paths)
    table = Table("model", "as trained", "corrected", "by", title=str(folder))
    for path in paths:
        model = fjord.load_model(path, experiment.model)
        (width,) = model.space.widths
        before = score_model(model, federation.data, width)
        correction = _correct_model(model, federation, width)
        after = score_model(model, federation.data, width)
        table.add_row(str(width), before, after, correction)
    out.print(table)


def _check_run(folder: Path, method: str, weights: list[Path]) -> None:
    if method not in METHODS:
        allowed = ", ".join(METHODS)
        raise UserError(f"{folder}: is a run of {method}; only {allowed} train changing parts")
    if not weights:
        raise UserError(
            f"{folder}: has no weights; results/ keeps none, but the folder of `fjord run` has them"
        )


def _correct_model(model: fjord.ElasticModel, federation: Federation, width: Width) -> str:
    """Correct a model in place and say how."""
    if has_statistics(model):
        fjord.recalibrate(model, width, training_inputs(federation.data))
        return "statistics"
    share = held_share(federation, width)
    scale_inputs(model, share)
    return f"scale {share:.2f}"
