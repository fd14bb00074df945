"""One real client, measured: it trains at a ceiling, with the widths it samples in turn."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from fjord.core.width import Width, parse_width
from fjord.data.federated import Batch, FederatedData, GeneratedData
from fjord.experiments.profiling.memory import JsonDict, PeakMemory, run_in_child
from fjord.federated.rounds import Federation
from fjord.training.assignment import Assignment
from fjord.training.local import ClientTrainer, LocalTraining
from fjord.training.objective import LogitsAt, Objective

SECONDS = 0.5
"""How long the steps of one ceiling are timed, at least."""
LEAST_ROUNDS = 3
MOST_ROUNDS = 500
"""How many times each width takes its turn."""


@dataclass(frozen=True)
class StepMeasurement:
    """The measurements of one ceiling."""

    steps: dict[Width, float]
    """Seconds of a step at each width that the client samples."""
    setup: float
    memory: int | None
    process: int


@dataclass(frozen=True)
class TrainingBench:
    """The client that is measured: one of a federation, with enough examples."""

    federation: Federation
    examples: Batch
    objective: Objective

    def measure(self, ceiling: Width) -> StepMeasurement:
        """Measure one ceiling in a child process."""
        reply = run_in_child(lambda: self._measure(ceiling))
        steps = {}
        for width, seconds in reply["steps"].items():
            steps[parse_width(width)] = seconds
        return StepMeasurement(
            steps=steps,
            setup=reply["setup"],
            memory=reply["memory"],
            process=reply["process"],
        )

    def _measure(self, ceiling: Width) -> JsonDict:
        torch.set_num_threads(1)  # as clients train
        self._warm_up(self.federation.space.widths[0])
        # A new thread has a heap of its own. In the old one, the work would fill the gaps that
        # earlier work left, and these would not be counted.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._measure_in_thread, ceiling).result()

    def _measure_in_thread(self, ceiling: Width) -> JsonDict:
        torch.set_num_threads(1)  # each thread has its own number
        peak = PeakMemory()
        task = received_copy(self.federation.assign_at(ceiling))
        client = _TimedClient(self, task)
        total, first_steps = client.run(1)
        _, steps = client.run(LEAST_ROUNDS)
        # After as many steps for every width, on slow devices as on fast ones.
        memory = peak.growth()
        round_seconds = sum(first_steps.values())
        rounds = math.ceil(SECONDS / max(1e-9, round_seconds))
        if rounds > LEAST_ROUNDS:
            _, steps = client.run(min(rounds, MOST_ROUNDS))
        last_step = steps[task.space.widths[0]]  # it begins a new turn
        setup = max(0.0, total - sum(steps.values()) - last_step)
        return {
            "steps": {str(width): seconds for width, seconds in steps.items()},
            "setup": setup,
            "memory": memory,
            "process": peak.start or 0,
        }

    def _warm_up(self, ceiling: Width) -> None:
        """Train a little: what libraries load at first use belongs to the process, not a width."""
        _TimedClient(self, self.federation.assign_at(ceiling)).run(1)


class _TimedClient:
    """A client that trains as usual, but takes the widths in turn instead of drawing them."""

    def __init__(self, bench: TrainingBench, task: Assignment) -> None:
        federation = bench.federation
        self.task = task
        self.objective = _TimedObjective(bench.objective, task.space.widths)
        self.training = replace(
            federation.training,
            objective=Objective(self.objective, bench.objective.widths),
        )
        inputs, _ = bench.examples
        self.batches = max(1, len(inputs) // self.training.batch_size)
        data = single_client_data(bench.examples, federation.data)
        self.trainer = ClientTrainer(federation.model, data, self.training, federation.seed)

    def run(self, rounds: int) -> tuple[float, dict[Width, float]]:
        """Train for some turns of all widths and one step.

        Return the seconds of the training, and the mean seconds of a step at each width.
        """
        # The last step has no next one that would show when it ended.
        num_widths = len(self.task.space.widths)
        num_steps = rounds * num_widths + 1
        self.trainer.training = _limit_steps(self.training, num_steps, self.batches)
        self.objective.marks.clear()
        started = time.perf_counter()
        self.trainer(self.task)
        seconds = time.perf_counter() - started
        return seconds, self.objective.step_seconds()


def _limit_steps(training: LocalTraining, num_steps: int, batches: int) -> LocalTraining:
    epochs = math.ceil(num_steps / batches)
    return replace(training, epochs=epochs, max_steps=num_steps)


class _TimedObjective:
    """A loss that notes when each step begins, and chooses the width of the step."""

    def __init__(self, objective: Objective, widths: tuple[Width, ...]) -> None:
        self.objective = objective
        self.widths = widths
        self.marks: list[float] = []

    def __call__(self, logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        num_steps = len(self.marks)
        turn = self.widths[num_steps % len(self.widths)]
        self.marks.append(time.perf_counter())
        return self.objective(logits_at, target, turn, widest)

    def step_seconds(self) -> dict[Width, float]:
        """Return the mean time from one step to the next at each width.

        It is the mean, as the time of a round is a sum, slow steps included.
        """
        spans = [end - start for start, end in pairwise(self.marks)]
        num_widths = len(self.widths)
        means = {}
        for i, width in enumerate(self.widths):
            own_spans = spans[i::num_widths]
            means[width] = fmean(own_spans)
        return means


def received_copy(task: Assignment) -> Assignment:
    """Return a task with tensors of its own, as a device receives them."""
    tensors = {}
    for key, tensor in task.tensors.items():
        tensors[key] = tensor.clone()
    return replace(task, tensors=tensors)


def single_client_data(examples: Batch, data: FederatedData) -> FederatedData:
    """Return data with one client that has these examples, each time in new memory."""
    inputs, targets = examples

    def load_examples(client: int) -> Batch:
        return inputs.clone(), targets.clone()

    return GeneratedData(1, load_examples, data.test, prepare=data.prepare)


def gather_examples(data: FederatedData, batch_size: int, count: int) -> Batch:
    """Return about `count` examples of the first clients, in whole batches.

    Where there are too few, they are repeated.
    """
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    gathered = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for client in range(data.num_clients):
            if gathered >= count:
                break
            client_inputs, client_targets = data.examples(client)
            inputs.append(client_inputs)
            targets.append(client_targets)
            gathered += len(client_inputs)
    batch = min(batch_size, count)
    num_rows = math.ceil(count / batch) * batch
    rows = torch.arange(num_rows) % gathered
    return torch.cat(inputs)[rows], torch.cat(targets)[rows]
