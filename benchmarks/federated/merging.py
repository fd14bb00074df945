"""The cost of merging: time relative to copying the same bytes, and memory in models."""

import ctypes
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from rich.table import Table

import fjord
from benchmarks.federated.tasks import ALL_WHOLE, OUT, images, resnet, timed
from fjord.core.width import uniform_widths
from fjord.elastic.client_model import SliceIndex, slice_index, take_tensors
from fjord.elastic.model import ElasticModel
from fjord.engines.in_process import InProcessEngine
from fjord.federated.aggregation import NestedMean
from fjord.federated.population import RoundClients
from fjord.federated.rounds import Federation
from fjord.federated.server_optimizers import ServerUpdate
from fjord.federated.validation import find_fault
from fjord.models import cifar_resnet18
from fjord.training.assignment import Assignment, ClientUpdate, total_bytes


def ten_tasks(model: ElasticModel) -> list[Assignment]:
    """Return what ten clients of uniform-5 tiers are sent, two of each tier."""
    found = []
    for client, ceiling in enumerate(
        w for w in reversed(uniform_widths(5).widths) for _ in range(2)
    ):
        space, held = uniform_widths(5).up_to(ceiling), model.plan.leading_units(ceiling)
        tensors = {
            key: t.detach()
            for key, t in take_tensors(model, slice_index(model, held, space.widths)).items()
        }
        found.append(Assignment(client, 0, ceiling, 0.1, held, space, tensors))
    return found


def answer(task: Assignment) -> ClientUpdate:
    """Return an update of 100 examples with weights of its own."""
    tensors = {key: t.clone() for key, t in task.tensors.items()}
    width = task.space.largest
    return ClientUpdate(task.client_id, tensors, 100, 1.0, {width: 1}, {width: 1}, 0)


def merge() -> None:
    """Compare merging ten updates of ResNet18 into the model with copying them."""
    model = fjord.elasticize(cifar_resnet18(), torch.randn(2, 3, 24, 24))
    tasks = ten_tasks(model)
    index = SliceIndex(model)
    server = ServerUpdate()
    updates = [answer(task) for task in tasks]
    found = {
        task.space: slice_index(model, task.units, task.space.widths) for task in tasks
    }  # as a federation keeps them
    where = [found[task.space] for task in tasks]
    copies = []
    for update in updates:
        copies.append({key: torch.empty_like(t) for key, t in update.tensors.items()})

    def merged() -> None:
        mean = NestedMean(model, index)
        for update, place in zip(updates, where, strict=True):
            mean.add_tensors(update.tensors, place, update.num_examples)
        server.apply(model, mean)

    def checked() -> None:
        assert not any(
            find_fault(task, update) for task, update in zip(tasks, updates, strict=True)
        )

    def copied() -> None:
        for copy, update in zip(copies, updates, strict=True):
            for key, tensor in update.tensors.items():
                copy[key].copy_(tensor)

    times = []
    for _ in range(25):
        times.append([timed(merged), timed(checked), timed(copied)])
    own, check, other = (median(column) for column in zip(*times[3:], strict=True))
    table = Table(
        "what", "ms", "over copying", title="merging 10 updates of ResNet18 (limit: at most 4)"
    )
    megabytes = sum(total_bytes(update.tensors) for update in updates) / 1e6
    table.add_row(f"copy their {megabytes:.0f} MB", f"{other * 1e3:.1f}", "1")
    table.add_row("merge them into the model", f"{own * 1e3:.1f}", f"{own / other:.2f}")
    table.add_row(
        "check them, merge them", f"{(own + check) * 1e3:.1f}", f"{(own + check) / other:.2f}"
    )
    OUT.print(table)


@dataclass
class Answering:
    """In the place of a trainer: clients that send back what they got."""

    model: ElasticModel

    def __call__(self, task: Assignment) -> ClientUpdate:
        """Answer."""
        return answer(task)


class OneByOne:
    """An engine whose clients answer at once, one after the other."""

    def __init__(self, federation: Federation) -> None:
        self.population = federation.population

    def clients(self, round_index: int) -> RoundClients:
        """Return all clients."""
        return self.population.clients_in(round_index)

    def metadata(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def train(self, tasks: Iterable[Assignment]) -> Iterator[tuple[Assignment, ClientUpdate]]:
        """Answer each task when it is asked for."""
        for task in tasks:
            yield task, answer(task)
            del task  # let go of it before the next is made

    def __enter__(self) -> "OneByOne":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def status(field: str) -> int:
    """Return a size of this process in bytes."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def peak(cohort: int, num_workers: int) -> float:
    """Return by how many models this process grows in a round of clients at full width."""
    experiment = replace(
        resnet(2), cohort_size=cohort, data=partial(images, clients=cohort, examples=1), **ALL_WHOLE
    )
    federation = next(iter(experiment.federations()))
    engine = OneByOne(federation)
    if num_workers > 1:
        engine = InProcessEngine(
            federation, workers=num_workers, trainer=Answering(federation.model)
        )
    with engine:
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        assert not next(federation.rounds(engine)).dropped
    return (status("VmHWM") - before) / total_bytes(federation.model.tensors)


def memory() -> None:
    """Measure, each in a process of its own, the peak of a round above the model it starts with."""
    table = Table(
        "engine",
        "updates",
        "models",
        title="memory while merging, above the model itself (limit: at most 4)",
    )
    for num_workers, name in ((1, "one by one"), (2, "2 workers, main process")):
        for cohort in (10, 100):
            measure = f"print(peak({cohort}, {num_workers}))"
            code = f"from benchmarks.federated.merging import peak; {measure}"
            found = subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True
            )
            table.add_row(name, str(cohort), f"{float(found.stdout):.2f}")
    OUT.print(table)
