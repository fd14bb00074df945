"""What data costs beside a training step (bar: at most 10%), and how long a start takes.

`FJORD_DATA=FOLDER python -m benchmarks.data`: fetching, shuffling, augmenting and batching on the
real tasks, which must lie in that folder. The narrowest width is the hardest case.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes.paper import RECIPES
from fjord.federated.rounds import Federation
from fjord.training.assignment import Assignment
from fjord.training.local import ClientTrainer

OUT = Console()
TASKS = ("cifar10", "femnist-digits", "emnist-skewed", "shakespeare")
WIDTHS = ("1/5", "1")
CLIENTS = 12
WARM_UP_CLIENTS = 2
STARTS = 3
IMPORT_RECIPES = "import fjord.experiments.recipes.paper"
LOAD_DATA = "from fjord.experiments.recipes.paper import RECIPES; RECIPES[{name!r}]().data(0)"


def time_call(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@dataclass(frozen=True)
class StepShares:
    """The median seconds of a step for its data alone and in all, and the number of steps."""

    data_seconds: float
    step_seconds: float
    num_steps: int


def measure_steps(experiment: Experiment) -> StepShares:
    """Train some clients, and go through their data without training."""
    federation = next(iter(experiment.federations()))
    trainer = ClientTrainer(federation.model, federation.data, federation.training, federation.seed)
    tasks: list[Assignment] = []
    for t in range(CLIENTS):
        tasks += federation.assignments(federation.population.clients_in(t))
    for task in tasks[:WARM_UP_CLIENTS]:
        trainer(task)
    data_times = [time_call(partial(count_batches, trainer, federation, task)) for task in tasks]
    train_times = [time_call(partial(trainer, task)) for task in tasks]
    steps = [count_batches(trainer, federation, task) for task in tasks]
    return StepShares(median_ratio(data_times, steps), median_ratio(train_times, steps), sum(steps))


def median_ratio(seconds: list[float], steps: list[int]) -> float:
    return median(time / count for time, count in zip(seconds, steps, strict=True))


def count_batches(trainer: ClientTrainer, federation: Federation, task: Assignment) -> int:
    """Make all batches of a client without training on them; return how many there are."""
    inputs, targets = federation.data.examples(task.client_id)
    count = 0
    for _ in trainer._batches(inputs, targets, 0):
        count += 1
    return count


def print_steps() -> None:
    table = Table("task", "width", "steps", "data, ms a step", "a step in all, ms", "share")
    for name in TASKS:
        for width in WIDTHS:
            recipe = RECIPES[name]()
            one_client = replace(recipe, method="heterofl", tiers=f"{width}:1", cohort_size=1)
            shares = measure_steps(one_client)
            table.add_row(
                name,
                width,
                str(shares.num_steps),
                f"{shares.data_seconds * 1e3:.3f}",
                f"{shares.step_seconds * 1e3:.2f}",
                f"{shares.data_seconds / shares.step_seconds:.1%}",
            )
    OUT.print(table)


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def print_starts() -> None:
    table = Table("task", "second start, s", "of it imports, s")
    for name in TASKS:
        code = LOAD_DATA.format(name=name)
        starts = [time_call(partial(run_python, code)) for _ in range(STARTS)]
        imports = time_call(partial(run_python, IMPORT_RECIPES))
        table.add_row(name, f"{median(starts):.2f}", f"{imports:.2f}")
    OUT.print(table)


if __name__ == "__main__":
    if "FJORD_DATA" not in os.environ:
        sys.exit("benchmarks.data needs the real datasets: set FJORD_DATA to their folder")
    torch.set_num_threads(1)
    print_steps()
    print_starts()
