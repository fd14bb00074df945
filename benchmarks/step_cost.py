"""Whether a step at width p really costs less: `python -m benchmarks.step_cost`.

For the paper's three models at the paper's batch sizes: the time of a training step at each width
over that at full width, beside the ratio of multiply-accumulates; and the same step taken the usual
way, by slicing full-size weights inside `forward`, whose gradients and optimizer are full-size. One
thread.
"""

import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call

import fjord
from fjord.elastic.indexing import take_slice
from fjord.elastic.model import ElasticModel
from fjord.models.catalog import find_model
from fjord.training.objective import cross_entropy

SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
REPEATS = {"resnet18": 8, "cnn": 200, "rnn": 100}
COLUMNS = ("width", "MACs / full", "step / full", "ms", "usual way, ms", "usual / ours")
TrainStep = Callable[[], object]
LabelledBatch = tuple[Tensor, Tensor]


def paper_batch(name: str) -> LabelledBatch:
    """Return a batch as in the paper: 24x24 crops, 28x28 characters, 80 characters of text."""
    if name == "resnet18":
        return torch.randn(32, 3, 24, 24), torch.randint(0, 10, (32,))
    if name == "cnn":
        return torch.randn(16, 1, 28, 28), torch.randint(0, 62, (16,))
    return torch.randint(0, 90, (4, 80)), torch.randint(0, 90, (4, 80))


def our_step(elastic: ElasticModel, batch: LabelledBatch, width: Fraction) -> TrainStep:
    optimizer = fjord.SlicedOptimizer(elastic, SGD)
    objective = fjord.ordered_dropout()
    widths = (width, Fraction(1))
    return lambda: fjord.train_step(elastic, optimizer, objective, batch, widths)


def usual_step(elastic: ElasticModel, batch: LabelledBatch, width: Fraction) -> TrainStep:
    """Slice the full-size weights inside the forward pass; gradients and momentum are full-size."""
    shell = elastic.cut(width).train()
    full = {}
    for name, parameter in elastic.cut("1").named_parameters():
        full[name] = nn.Parameter(parameter.detach().clone())
    units = elastic.plan.leading_units(width)
    indices = elastic.plan.kept_indices(units)
    optimizer = SGD(full.values())
    inputs, targets = batch

    def step() -> None:
        optimizer.zero_grad()
        sliced = {name: take_slice(weight, indices[name]) for name, weight in full.items()}
        outputs = functional_call(shell, sliced, (inputs,))
        cross_entropy(outputs, targets).backward()
        optimizer.step()

    return step


def best_times(steps: list[TrainStep], repeats: int) -> list[float]:
    """Return the best time of each step; they take turns, so that a slow moment affects all."""
    best = [float("inf")] * len(steps)
    for _ in range(repeats):
        for i, step in enumerate(steps):
            start = time.perf_counter()
            step()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def step_table(name: str, repeats: int) -> Table:
    entry = find_model(name)
    batch = paper_batch(name)
    elastic = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    widths = elastic.space.widths
    footprints = fjord.measure_footprints(elastic, (batch[0][:1],))
    steps = []
    for width in widths:
        steps.append(our_step(elastic, batch, width))
        steps.append(usual_step(elastic, batch, width))
    times = best_times(steps, repeats)
    table = Table(*COLUMNS, title=f"{name}, one step")
    full_macs = footprints[-1].macs
    full_time = times[-2]
    for i, width in enumerate(widths):
        ours = times[2 * i]
        usual = times[2 * i + 1]
        table.add_row(
            str(width),
            f"{footprints[i].macs / full_macs:.2f}",
            f"{ours / full_time:.2f}",
            f"{ours * 1e3:.2f}",
            f"{usual * 1e3:.2f}",
            f"{usual / ours:.2f}",
        )
    return table


def main() -> None:
    torch.set_num_threads(1)
    console = Console(width=110, highlight=False)
    for name, repeats in REPEATS.items():
        console.print(step_table(name, repeats))


if __name__ == "__main__":
    main()
