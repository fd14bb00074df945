"""Training steps of ResNet18 in a process that keeps freed memory, over steps in one that gives it back."""

import multiprocessing
import resource
import time
from statistics import median

import torch
import torch.nn.functional as F
from rich.table import Table

from benchmarks.federated.tasks import OUT
from fjord.elastic.elasticize import elasticize
from fjord.engines.memory import keep_memory
from fjord.models.resnet import cifar_resnet18
from fjord.width import parse_width

Cost = tuple[float, int]
"""Seconds of a step, and pages that the system had to clear in it."""


def step_cost(width: str, keep: bool, steps: int = 8) -> Cost:
    """Take plain SGD steps on a batch of 32 and return what the median one cost."""
    torch.set_num_threads(1)
    if keep and not keep_memory():
        raise ValueError("this system's C library cannot be told to keep memory")
    net = elasticize(cifar_resnet18(), torch.randn(2, 3, 32, 32)).cut(parse_width(width)).train()
    optimizer, costs = torch.optim.SGD(net.parameters(), lr=0.01), list[Cost]()
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    for _ in range(2 + steps):
        pages, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
        seconds = time.perf_counter() - started
        costs.append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages))
    return median(c[0] for c in costs[2:]), int(median(c[1] for c in costs[2:]))


def allocation(turns: int = 3) -> None:
    """Compare the two in turn, each time in a new process."""
    table = Table("width", "given back, ms", "pages", "kept, ms", "pages", "ratio", title="freed memory (bar: below 1)")
    spawn = multiprocessing.get_context("spawn")
    for width in ("1/5", "2/5", "3/5", "1"):
        found: dict[bool, list[Cost]] = {False: [], True: []}
        for turn in range(2 * turns):
            with spawn.Pool(1) as pool:
                found[bool(turn % 2)].append(pool.apply(step_cost, (width, bool(turn % 2))))
        (back, cleared), (kept, few) = (tuple(map(median, zip(*found[k], strict=True))) for k in (False, True))
        table.add_row(
            width, f"{1000 * back:.0f}", f"{cleared:,.0f}", f"{1000 * kept:.0f}", f"{few:,.0f}", f"{kept / back:.2f}"
        )
    OUT.print(table)
