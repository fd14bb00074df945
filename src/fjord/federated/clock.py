"""Simulated time: an engine whose clients take as long as their devices would."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice, repeat
from typing import Self

import torch

from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import CountedData, FederatedData
from fjord.devices.speed_table import SpeedTable
from fjord.devices.speeds import ClientWorkload
from fjord.elastic.client_model import units_below
from fjord.elastic.footprint import count_macs
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.federated.engine import Engine, Reply
from fjord.federated.population import RoundClients
from fjord.federated.validation import AcceptedUpdate, validate_reply
from fjord.training.assignment import Assignment, Fallbacks, Rejected, total_bytes
from fjord.training.evaluate import ExampleScores
from fjord.training.local import LocalTraining, batch_sizes, sampled_widths


class CostModel:
    """Predicts what a client's training costs: its steps and their widths follow from the seed."""

    def __init__(
        self, model: ElasticModel, data: FederatedData, training: LocalTraining, seed: int
    ) -> None:
        self.model = model
        self.data = data
        self.training = training
        self.seed = seed
        self.num_examples = cache(self._count_examples)
        self._macs: dict[tuple[Width, tuple[int, ...]], int] = {}

    def __call__(self, assignment: Assignment) -> tuple[int, int]:
        """Return the steps of a client and their multiply-accumulates."""
        num_examples = self.num_examples(assignment.client_id)
        epoch = batch_sizes(num_examples, self.training.batch_size)
        all_epochs = chain.from_iterable(repeat(epoch, self.training.epochs))
        sizes = list(islice(all_epochs, self.training.max_steps))
        examples: Counter[Width] = Counter()
        widths = sampled_widths(assignment, self.seed)
        for size, width in zip(sizes, widths, strict=False):
            for run in self.training.objective.widths(width, assignment.space.largest):
                examples[run] += size
        macs = 0
        for width, count in examples.items():
            macs += 3 * count * self._macs_at(assignment, width)
        return len(sizes), macs

    def _count_examples(self, client_id: int) -> int:
        if isinstance(self.data, CountedData) and callable(self.data.num_examples):
            return self.data.num_examples(client_id)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(self.seed, "examples", client_id))
            return len(self.data.examples(client_id)[1])

    def _macs_at(self, assignment: Assignment, width: Width) -> int:
        """Return the multiply-accumulates of one example, which depend on the numbers of units."""
        units = units_below(self.model.plan, assignment.units, width)
        key = (width, tuple(len(selected) for selected in units.values()))
        if key not in self._macs:
            inputs = self.data.test.batch(0, 1)[0]
            self._macs[key] = count_macs(self.model.cut(width, units), (inputs,))
        return self._macs[key]


def covering_width(plan: WidthPlan, space: WidthSpace, units: UnitSelection) -> Width:
    """Return the smallest width of P that has as many units of each family as are selected."""
    for width in space.widths:
        if all(len(units[family.name]) <= family.unit_count(width) for family in plan.families):
            return width
    raise AssertionError("no width of P has as many units")


@dataclass(frozen=True)
class ClientTimer:
    """Tells how long clients take to train one model."""

    speeds: SpeedTable
    cost_model: CostModel
    space: WidthSpace
    """P."""
    fallbacks: Fallbacks

    def predicted_seconds(self, assignment: Assignment, ceiling: Width) -> float:
        """Return how long a client of a device ceiling will take."""
        steps, macs = self.cost_model(assignment)
        upload = total_bytes(assignment.tensors)
        return self._seconds(assignment, assignment, ceiling, (upload, steps, macs))

    def actual_seconds(self, accepted: AcceptedUpdate, ceiling: Width) -> float:
        """Return how long a client took, from what it trained and sent back."""
        update = accepted.update
        steps = sum(update.widest_steps.values())
        work = (total_bytes(update.tensors), steps, update.macs)
        return self._seconds(accepted.sent, accepted.trained, ceiling, work)

    def _seconds(
        self, sent: Assignment, trained: Assignment, ceiling: Width, work: tuple[int, int, int]
    ) -> float:
        width = covering_width(self.cost_model.model.plan, self.space, trained.units)
        return self.speeds.client_seconds(
            ceiling,
            ClientWorkload(sent.num_bytes, *work, width),
            seed=self.cost_model.seed,
            round_index=sent.round_index,
            client_id=sent.client_id,
        )


class SimulatedClock:
    """An engine on simulated time.

    A round lasts until its last client is back, or until the deadline. Clients that are known to
    come too late are not trained at all; they were sent their assignment, and are waited for in
    vain.
    """

    def __init__(self, engine: Engine, timer: ClientTimer) -> None:
        self.engine = engine
        self.timer = timer
        self.seconds = 0.0
        self._clients: RoundClients | None = None

    def clients(self, round_index: int) -> RoundClients:
        """Return who is there in a round; its time begins."""
        self.seconds = 0.0
        self._clients = self.engine.clients(round_index)
        return self._clients

    def train(self, assignments: Iterable[Assignment]) -> Iterator[tuple[Assignment, Reply]]:
        """Train the clients that can be back in time; those that are late come first."""
        in_time = SelectedAssignments(assignments)
        for position, assignment in enumerate(assignments):
            reason = self._late_before_training(assignment)
            if reason is None:
                in_time.positions.add(position)
            else:
                yield assignment, Rejected(reason)
        for assignment, reply in self.engine.train(in_time):
            yield assignment, self._take_time(assignment, reply)
            del assignment, reply  # or they would stay in memory while the next ones are made

    def _late_before_training(self, assignment: Assignment) -> str | None:
        if self.timer.speeds.deadline is None:
            return None
        ceiling = self._device_ceiling(assignment)
        return self._wait(self.timer.predicted_seconds(assignment, ceiling))

    def _take_time(self, assignment: Assignment, reply: Reply) -> Reply:
        """Take a client's time; return its reply, or that it is late."""
        outcome = validate_reply(assignment, reply, self.timer.fallbacks)
        ceiling = self._device_ceiling(assignment)
        if isinstance(outcome, Rejected):
            self._wait(self.timer.predicted_seconds(assignment, ceiling))
            return outcome
        reason = self._wait(self.timer.actual_seconds(outcome, ceiling))
        return outcome if reason is None else Rejected(reason)

    def _wait(self, seconds: float) -> str | None:
        """Wait for a client, until the deadline at most; say if it is late."""
        deadline = self.timer.speeds.deadline
        waited = seconds if deadline is None else min(seconds, deadline)
        self.seconds = max(self.seconds, waited)
        return self.timer.speeds.late_reason(seconds)

    def _device_ceiling(self, assignment: Assignment) -> Width:
        assert self._clients is not None
        ceiling = self._clients.ceiling(assignment.client_id)
        assert ceiling is not None
        return ceiling

    def evaluate(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model at each width; that takes no simulated time."""
        return self.engine.evaluate(model, widths)

    def metadata(self) -> Mapping[str, float]:
        """Return what the engine says of the last round, and how long it lasted."""
        return {**self.engine.metadata(), "simulated_seconds": self.seconds}

    def __enter__(self) -> Self:
        """Start the engine."""
        self.engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """End the engine."""
        self.engine.__exit__(*error)


class SelectedAssignments:
    """Some of the assignments of a round, by position; made anew each time they are iterated."""

    def __init__(self, assignments: Iterable[Assignment]) -> None:
        self.assignments = assignments
        self.positions: set[int] = set()

    def __iter__(self) -> Iterator[Assignment]:
        """Yield the selected assignments in their order."""
        for position, assignment in enumerate(self.assignments):
            if position in self.positions:
                yield assignment
