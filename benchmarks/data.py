"""What fetching, shuffling, augmenting and batching cost beside a step (bar: at most 10%), and how long a start takes.

`FJORD_DATA=FOLDER python -m benchmarks.data`: on the real tasks, which must lie there. The narrowest width is the
hardest case.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes.paper import RECIPES
from fjord.federated.rounds import Federation
from fjord.training.local import Assignment, ClientTrainer

OUT = Console()
TASKS = ("cifar10", "femnist-digits", "emnist-skewed", "shakespeare")
CLIENTS = 12


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def shares(experiment: Experiment) -> tuple[float, float, int]:
    """Return the median seconds a client takes for its data alone and in all, and its number of steps."""
    federation = next(iter(experiment.federations()))
    trainer = ClientTrainer(federation.model, federation.data, federation.training, federation.seed)
    tasks = [task for t in range(CLIENTS) for task in federation.tasks(t)]
    for task in tasks[:2]:
        trainer(task)
    alone = [timed(lambda task=task: only_data(trainer, federation, task)) for task in tasks]
    in_all = [timed(lambda task=task: trainer(task)) for task in tasks]
    steps = [
        len(list(trainer._batches(*federation.data.examples(task.client_id), 0))) for task in tasks
    ]
    return (
        median(a / s for a, s in zip(alone, steps, strict=True)),
        median(b / s for b, s in zip(in_all, steps, strict=True)),
        sum(steps),
    )


def only_data(trainer: ClientTrainer, federation: Federation, task: Assignment) -> None:
    for _ in trainer._batches(*federation.data.examples(task.client_id), 0):
        pass


def steps() -> None:
    table = Table("task", "width", "steps", "data, ms a step", "a step in all, ms", "share")
    for name in TASKS:
        for width in ("1/5", "1"):
            base = replace(RECIPES[name](), method="heterofl", tiers=f"{width}:1", cohort_size=1)
            data, in_all, count = shares(base)
            table.add_row(
                name,
                width,
                str(count),
                f"{data * 1e3:.3f}",
                f"{in_all * 1e3:.2f}",
                f"{data / in_all:.1%}",
            )
    OUT.print(table)


def starts() -> None:
    table = Table("task", "second start, s", "of it imports, s")
    for name in TASKS:
        code = f"from fjord.experiments.recipes.paper import RECIPES; RECIPES[{name!r}]().data(0)"
        found = [
            timed(lambda code=code: subprocess.run([sys.executable, "-c", code], check=True))
            for _ in range(3)
        ]
        bare = timed(
            lambda: subprocess.run(
                [sys.executable, "-c", "import fjord.experiments.recipes.paper"], check=True
            )
        )
        table.add_row(name, f"{median(found):.2f}", f"{bare:.2f}")
    OUT.print(table)


if __name__ == "__main__":
    if "FJORD_DATA" not in os.environ:
        sys.exit(
            "benchmarks.data needs the real datasets: set FJORD_DATA to the folder they lie in"
        )
    torch.set_num_threads(1)
    steps()
    starts()
