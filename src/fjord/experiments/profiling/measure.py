"""One real client, measured: the local training of a ceiling, with the widths it samples taken in turn."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from fjord.core.width import Width, parse_width
from fjord.data.federated import Batch, FederatedData, GeneratedData
from fjord.experiments.profiling.memory import PeakMemory, Plain, run_in_child
from fjord.federated.rounds import Federation
from fjord.training.local import Assignment, ClientTrainer, LocalTraining
from fjord.training.objective import LogitsAt, Objective

SECONDS = 0.5
"""How long the steps of one ceiling are timed, at least."""
ROUNDS = range(3, 501)
"""How many times each width takes its turn."""


@dataclass(frozen=True)
class StepMeasurement:
    """What one ceiling came to."""

    steps: dict[Width, float]
    """Seconds of a step at each width that the client samples."""
    setup: float
    memory: int | None
    process: int


@dataclass(frozen=True)
class TrainingBench:
    """Who is measured: a client of a federation, with examples enough."""

    federation: Federation
    examples: Batch
    objective: Objective

    def measure(self, ceiling: Width) -> StepMeasurement:
        """Measure one ceiling in a child process."""
        found = run_in_child(lambda: self._measure(ceiling))
        steps = {parse_width(width): seconds for width, seconds in found["steps"].items()}
        return StepMeasurement(steps, found["setup"], found["memory"], found["process"])

    def _measure(self, ceiling: Width) -> Plain:
        torch.set_num_threads(1)  # as clients train
        self._warm_up(self.federation.space.widths[0])
        # A new thread has a heap of its own: in the old one, gaps left by all that was done before would be filled.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._in_thread, ceiling).result()

    def _in_thread(self, ceiling: Width) -> Plain:
        torch.set_num_threads(1)  # each thread has its own number
        peak = PeakMemory()
        task = received_copy(self.federation.task_at(ceiling))
        client = _Client(self, task)
        total, first = client.run(1)
        _, steps = client.run(ROUNDS[0])
        memory = (
            peak.growth()
        )  # after as many steps for every width, on slow devices and on fast ones
        rounds = math.ceil(SECONDS / max(1e-9, sum(first.values())))
        if rounds > ROUNDS[0]:
            _, steps = client.run(min(rounds, ROUNDS[-1]))
        setup = max(
            0.0, total - sum(steps.values()) - steps[task.space.widths[0]]
        )  # the last step begins a new turn
        seconds = {str(width): value for width, value in steps.items()}
        return {"steps": seconds, "setup": setup, "memory": memory, "process": peak.start or 0}

    def _warm_up(self, ceiling: Width) -> None:
        """Train a little: what libraries load at first use belongs to the process, not to a width."""
        _Client(self, self.federation.task_at(ceiling)).run(1)


class _Client:
    """A client that trains as usual but for the widths, which take turns in place of being drawn."""

    def __init__(self, bench: TrainingBench, task: Assignment) -> None:
        self.task, self.clock = task, _Clock(bench.objective, task.space.widths)
        self.batches = max(1, len(bench.examples[0]) // bench.federation.training.batch_size)
        self.how = replace(bench.federation.training, objective=self.clock)
        data = single_client_data(bench.examples, bench.federation.data)
        self.trainer = ClientTrainer(bench.federation.model, data, self.how, bench.federation.seed)

    def run(self, rounds: int) -> tuple[float, dict[Width, float]]:
        """Train one client for some turns of all widths and one step; return its time, and that of each step."""
        num_steps = (
            rounds * len(self.task.space.widths) + 1
        )  # the last step has no next one to tell when it ended
        self.trainer.how = _for_steps(self.how, num_steps, self.batches)
        self.clock.marks.clear()
        started = time.perf_counter()
        self.trainer(self.task)
        return time.perf_counter() - started, self.clock.steps()


def _for_steps(how: LocalTraining, num_steps: int, batches: int) -> LocalTraining:
    return replace(how, epochs=math.ceil(num_steps / batches), max_steps=num_steps)


class _Clock:
    """A loss that notes when each step begins, and says at which width it is taken."""

    def __init__(self, objective: Objective, widths: tuple[Width, ...]) -> None:
        self.objective, self.widths = objective, widths
        self.marks: list[float] = []

    def __call__(self, logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        turn = self.widths[len(self.marks) % len(self.widths)]
        self.marks.append(time.perf_counter())
        return self.objective(logits_at, target, turn, widest)

    def steps(self) -> dict[Width, float]:
        """Return the mean time from one step to the next at each width: a round is a sum, slow steps included."""
        spans = [end - start for start, end in zip(self.marks, self.marks[1:], strict=False)]
        return {width: fmean(spans[i :: len(self.widths)]) for i, width in enumerate(self.widths)}


def received_copy(task: Assignment) -> Assignment:
    """Return a task whose tensors are its own, as a device has received them."""
    return replace(task, tensors={key: tensor.clone() for key, tensor in task.tensors.items()})


def single_client_data(examples: Batch, data: FederatedData) -> FederatedData:
    """Return data with one client that has these examples, each time in memory of its own."""
    return GeneratedData(
        1, lambda _: (examples[0].clone(), examples[1].clone()), data.test, prepare=data.prepare
    )


def gather_examples(data: FederatedData, batch_size: int, count: int) -> Batch:
    """Return about `count` examples in whole batches, of the first clients, taken again if there are too few."""
    found, clients = list[Batch](), iter(range(data.num_clients))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        while sum(len(x) for x, _ in found) < count and (client := next(clients, None)) is not None:
            found.append(data.examples(client))
    inputs, targets = torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])
    whole = min(batch_size, count)
    rows = torch.arange(math.ceil(count / whole) * whole) % len(inputs)
    return inputs[rows], targets[rows]
