"""`fjord search`: the best widths layer by layer under a budget."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fjord.cli.inference import Data, Threads, use_threads
from fjord.cli.trained import RECIPE, TrainedModel, open_trained
from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.data.federated import FederatedData
from fjord.deploy.limits import CostLimits, format_cost
from fjord.deploy.search import SearchResult
from fjord.deploy.search import search_widths as find_widths
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import write_submodel
from fjord.training.evaluate import Batches, score_network

out = Console(highlight=False)
BATCH = 50


def search_submodel(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run folder, or a file written by ElasticModel.save().")
    ],
    macs: Annotated[
        str | None, typer.Option(help="Most multiply-accumulates: 50% of full width, or 200M.")
    ] = None,
    bytes: Annotated[
        str | None, typer.Option(help="Most bytes: 50% of full width, or 2MB.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="Longest request here: 50% of full width, or 5ms.")
    ] = None,
    data: Data = None,
    examples: Annotated[
        int, typer.Option(help="How many test examples submodels are scored on at most.")
    ] = 1000,
    evaluations: Annotated[int, typer.Option(help="How many submodels are tried.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Write the submodel found here (safetensors).")
    ] = None,
    threads: Threads = 1,
) -> None:
    """Find the best widths layer by layer under a budget, on a trained model, with no retraining."""
    if examples < 1:
        raise UserError(f"--examples {examples}: must be at least 1")
    if output is not None and not output.parent.is_dir():
        raise UserError(f"--output {output}: the folder {output.parent} does not exist")
    use_threads(threads)
    trained = _Task.of(open_trained(checkpoint, RECIPE, recipe=data))
    limits = CostLimits((trained.data.test.batch(0, 1)[0],), macs, bytes, latency)
    tried, kept = _halves(trained, examples)
    with out.status("searching ..."):
        found = find_widths(
            trained.model,
            lambda net: _quality(trained, net, tried),
            limits,
            batches=_unlabelled(trained),
            evaluations=evaluations,
            seed=seed,
        )
    _show(trained, found, limits, kept)
    if output is not None:
        _write(trained, found, output)


@dataclass(frozen=True)
class _Task:
    """A trained elastic model, the data of its recipe, and what counts there."""

    model: ElasticModel
    data: FederatedData
    metric: str

    @classmethod
    def of(cls, opened: TrainedModel) -> Self:
        assert opened.source.data is not None  # as neither a model nor a shape was given
        return cls(opened.elastic(), opened.source.data, opened.source.metric)


def _quality(trained: _Task, net: nn.Module, batches: Batches) -> float:
    result = score_network(net, batches)
    return result.accuracy if trained.metric == "accuracy" else -result.perplexity


def _halves(trained: _Task, examples: int) -> tuple[Batches, Batches]:
    """Return two parts of the test examples: one to search by, and one that the search never sees."""
    test = trained.data.test
    if len(test.inputs) < 2:
        raise UserError(
            "the recipe has a single test example: too few to search by one part and report on another"
        )
    order = torch.randperm(
        len(test.inputs),
        generator=torch.Generator().manual_seed(derive_seed(0, "search", "halves")),
    )
    half = len(order) // 2

    def batches(rows: Tensor) -> Batches:
        return [
            (test.prepare(test.inputs[part], None), test.targets[part])
            for part in rows.split(BATCH)
        ]

    return batches(order[: min(half, examples)]), batches(order[half:])


def _unlabelled(trained: _Task, most: int = 8) -> list[Tensor]:
    """Return some batches of training inputs, of one client after another."""
    found: list[Tensor] = []
    for client in range(trained.data.num_clients):
        inputs = trained.data.examples(client)[0]
        found += [trained.data.prepare(part, None) for part in inputs.split(BATCH) if len(part) > 1]
        if len(found) >= most:
            break
    return found[:most]


def _show(trained: _Task, found: SearchResult, limits: CostLimits, kept: Batches) -> None:
    model, names = trained.model.eval(), list(limits.given)
    table = Table(
        "submodel", *names, f"{trained.metric}, searched", f"{trained.metric}, other examples"
    )
    best = _quality(trained, model.cut(found.uniform).eval(), kept)
    costs = found.uniform_costs
    rows = [(f"width {found.uniform}", costs, found.uniform_score, best)]
    rows.append(
        (
            "by layer",
            found.costs,
            found.score,
            _quality(trained, model.cut(found.widths).eval(), kept),
        )
    )
    for label, paid, searched, unseen in rows:
        shown = [format_cost(name, paid[name]) for name in names]
        table.add_row(label, *shown, _number(trained, searched), _number(trained, unseen))
    out.print(table)
    out.print("Width of each layer, with those that share its units:")
    for family in model.plan.families:
        layers = ", ".join(family.layers[:3]) + (", ..." if len(family.layers) > 3 else "")
        out.print(f"  {found.widths[family.name]!s:>5}  {layers}", markup=False, soft_wrap=True)
    how = (
        "all that there are"
        if found.exhaustive
        else "evolved from the widths that all layers share"
    )
    out.print(f"{found.evaluated} submodels tried, {how}.")


def _number(trained: _Task, value: float) -> str:
    return f"{value:.1%}" if trained.metric == "accuracy" else f"{-value:.2f}"


def _write(trained: _Task, found: SearchResult, output: Path) -> None:
    """Write the submodel as `fjord cut` would, with the statistics that were measured for it."""
    with tempfile.TemporaryDirectory(prefix="fjord-") as folder:
        whole = Path(folder) / "whole.safetensors"
        trained.model.save(whole)
        write_submodel(whole, {name: str(width) for name, width in found.widths.items()}, output)
    out.print(
        f"Written: {output}; widths {json.dumps({n: str(w) for n, w in found.widths.items()})}",
        soft_wrap=True,
    )
