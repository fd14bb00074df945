"""`fjord search`: the best widths by layer under a budget."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import torch
import typer
from torch import Tensor, nn

from fjord.cli.inference import Data, Threads, use_threads
from fjord.cli.tables import out, print_line, print_table
from fjord.cli.trained import NEEDS_RECIPE, TrainedModel, open_trained
from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Widths
from fjord.data.federated import FederatedData
from fjord.deploy.limits import CostLimits, format_cost
from fjord.deploy.search import SearchResult, search_widths
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import write_submodel
from fjord.training.evaluate import Batches, score_network

BATCH_SIZE = 50
NUM_UNLABELLED = 8
"""How many batches BatchNorm statistics are measured on."""
SHOWN_LAYERS = 3


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
    """Find the best widths by layer under a budget, for a trained model, with no retraining."""
    if examples < 1:
        raise UserError("must be at least 1", field="examples", value=examples)
    if output is not None and not output.parent.is_dir():
        message = f"cannot be written: the folder {output.parent} does not exist"
        raise UserError(message, field="output", value=output)
    use_threads(threads)
    task = _SearchTask.from_trained(open_trained(checkpoint, NEEDS_RECIPE, recipe=data))
    request = (task.data.test.batch(0, 1)[0],)
    limits = CostLimits(request, macs, bytes, latency)
    searched, unseen = task.split_test_set(examples)
    with out.status("searching ..."):
        result = search_widths(
            task.model,
            lambda net: task.score(net, searched),
            limits,
            batches=task.unlabelled_batches(),
            evaluations=evaluations,
            seed=seed,
        )
    _print_scores(task, result, limits, unseen)
    _print_widths(task.model, result)
    if output is not None:
        _write_submodel(task.model, result, output)


@dataclass(frozen=True)
class _SearchTask:
    """A trained elastic model, the data of its recipe, and the metric that counts there."""

    model: ElasticModel
    data: FederatedData
    metric: str

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> Self:
        source = trained.source
        assert source.data is not None  # as neither a model nor a shape was given
        return cls(trained.load_elastic(), source.data, source.metric)

    def score(self, net: nn.Module, batches: Batches) -> float:
        """Return the score of a submodel; more is better."""
        result = score_network(net, batches)
        if self.metric == "accuracy":
            return result.accuracy
        return -result.perplexity

    def format_score(self, score: float) -> str:
        if self.metric == "accuracy":
            return f"{score:.1%}"
        return f"{-score:.2f}"

    def split_test_set(self, examples: int) -> tuple[Batches, Batches]:
        """Return two halves of the test set: one to search by, and one the search never sees."""
        count = len(self.data.test.inputs)
        if count < 2:
            raise UserError(
                "the recipe has a single test example: too few to search by one part and report "
                "on another"
            )
        generator = torch.Generator().manual_seed(derive_seed(0, "search", "halves"))
        order = torch.randperm(count, generator=generator)
        half = count // 2
        searched = order[: min(half, examples)]
        return self._test_batches(searched), self._test_batches(order[half:])

    def _test_batches(self, rows: Tensor) -> Batches:
        test = self.data.test
        batches = []
        for part in rows.split(BATCH_SIZE):
            batches.append((test.prepare(test.inputs[part], None), test.targets[part]))
        return batches

    def unlabelled_batches(self) -> list[Tensor]:
        """Return some batches of training inputs, of one client after another."""
        batches: list[Tensor] = []
        for client in range(self.data.num_clients):
            inputs, _ = self.data.examples(client)
            for part in inputs.split(BATCH_SIZE):
                if len(part) > 1:
                    batches.append(self.data.prepare(part, None))
            if len(batches) >= NUM_UNLABELLED:
                break
        return batches[:NUM_UNLABELLED]


def _print_scores(
    task: _SearchTask, result: SearchResult, limits: CostLimits, unseen: Batches
) -> None:
    """Print the best submodel beside the best width that all layers share."""
    model = task.model.eval()
    names = list(limits.active)
    submodels: list[tuple[str, Widths, dict[str, float], float]] = [
        (f"width {result.uniform}", result.uniform, result.uniform_costs, result.uniform_score),
        ("by layer", result.widths, result.costs, result.score),
    ]
    rows = []
    for label, widths, costs, searched_score in submodels:
        unseen_score = task.score(model.cut(widths).eval(), unseen)
        row = [label]
        for name in names:
            row.append(format_cost(name, costs[name]))
        row.append(task.format_score(searched_score))
        row.append(task.format_score(unseen_score))
        rows.append(row)
    metric = task.metric
    columns = ["submodel", *names, f"{metric}, searched", f"{metric}, other examples"]
    print_table(columns, rows)


def _print_widths(model: ElasticModel, result: SearchResult) -> None:
    out.print("Width of each layer, with those that share its units:")
    for family in model.plan.families:
        layers = ", ".join(family.layers[:SHOWN_LAYERS])
        if len(family.layers) > SHOWN_LAYERS:
            layers += ", ..."
        print_line(f"  {result.widths[family.name]!s:>5}  {layers}")
    how = "evolved from the widths that all layers share"
    if result.exhaustive:
        how = "all that there are"
    out.print(f"{result.evaluated} submodels tried, {how}.")


def _write_submodel(model: ElasticModel, result: SearchResult, output: Path) -> None:
    """Write the submodel as `fjord cut` would, with the statistics that were measured for it."""
    widths = {name: str(width) for name, width in result.widths.items()}
    with tempfile.TemporaryDirectory(prefix="fjord-") as folder:
        whole = Path(folder) / "whole.safetensors"
        model.save(whole)
        write_submodel(whole, widths, output)
    print_line(f"Written: {output}; widths {json.dumps(widths)}")
