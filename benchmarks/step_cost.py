"""Whether a step at width p really costs less: `python -m benchmarks.step_cost`.

For the paper's three models at the paper's batch sizes: the time of a training step at each width over
that at full width, beside the ratio of multiply-accumulates; and the same step taken the usual way, by
slicing full-size weights inside `forward`, whose gradients and optimizer are full-size. One thread.
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
Step = Callable[[], object]


def batch_of(name: str) -> tuple[Tensor, Tensor]:
    """Return a batch as the paper trains on: 24x24 crops, 28x28 characters, 80 characters of text."""
    if name == "resnet18":
        return torch.randn(32, 3, 24, 24), torch.randint(0, 10, (32,))
    if name == "cnn":
        return torch.randn(16, 1, 28, 28), torch.randint(0, 62, (16,))
    return torch.randint(0, 90, (4, 80)), torch.randint(0, 90, (4, 80))


def ours(elastic: ElasticModel, batch: tuple[Tensor, Tensor], width: Fraction) -> Step:
    optimizer = fjord.SlicedOptimizer(elastic, SGD)
    return lambda: fjord.train_step(
        elastic, optimizer, fjord.ordered_dropout(), batch, (width, Fraction(1))
    )


def usual(elastic: ElasticModel, batch: tuple[Tensor, Tensor], width: Fraction) -> Step:
    """Slice the full-size weights inside the forward pass; gradients and momentum are full-size."""
    shell = elastic.cut(width).train()
    full = {
        name: nn.Parameter(t.detach().clone()) for name, t in elastic.cut("1").named_parameters()
    }
    indices = elastic.plan.kept_indices(elastic.plan.leading_units(width))
    optimizer = SGD(full.values())

    def step() -> None:
        optimizer.zero_grad()
        sliced = {name: take_slice(weight, indices[name]) for name, weight in full.items()}
        cross_entropy(functional_call(shell, sliced, (batch[0],)), batch[1]).backward()
        optimizer.step()

    return step


def times(steps: list[Step], repeats: int) -> list[float]:
    """Return the best time of each step; they take turns, so that a slow moment hits all."""
    best = [float("inf")] * len(steps)
    for _ in range(repeats):
        for i, step in enumerate(steps):
            start = time.perf_counter()
            step()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def main() -> None:
    torch.set_num_threads(1)
    out = Console(width=110, highlight=False)
    for name, repeats in (("resnet18", 8), ("cnn", 200), ("rnn", 100)):
        entry, batch = find_model(name), batch_of(name)
        elastic = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
        widths = elastic.space.widths
        macs = [row.macs for row in fjord.measure_footprints(elastic, (batch[0][:1],))]
        steps = [make(elastic, batch, width) for width in widths for make in (ours, usual)]
        measured = times(steps, repeats)
        mine, theirs = measured[::2], measured[1::2]
        table = Table(
            "width",
            "MACs / full",
            "step / full",
            "ms",
            "usual way, ms",
            "usual / ours",
            title=f"{name}, one step",
        )
        for width, mac, own, other in zip(widths, macs, mine, theirs, strict=True):
            ratios = (
                f"{mac / macs[-1]:.2f}",
                f"{own / mine[-1]:.2f}",
                f"{own * 1e3:.2f}",
                f"{other * 1e3:.2f}",
            )
            table.add_row(str(width), *ratios, f"{other / own:.2f}")
        out.print(table)


if __name__ == "__main__":
    main()
