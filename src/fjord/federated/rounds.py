"""Algorithm 1: the one round loop, whatever the method and the engine."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from fjord.core.errors import UserError
from fjord.core.seeding import ShuffledRange, derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import FederatedData
from fjord.devices.speed_table import SpeedTable
from fjord.devices.speeds import ClientWorkload
from fjord.devices.tiers import DevicePopulation, VaryingDevices
from fjord.elastic.client_model import SliceIndex, take_tensors
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.federated.aggregation import NestedMean
from fjord.federated.allocation import SubmodelAllocator
from fjord.federated.clock import ClientTimer, CostModel, RoundClock, held_width
from fjord.federated.engine import Engine
from fjord.federated.fednova import NormalisedMean
from fjord.federated.methods import ClientContext, Method
from fjord.federated.reply_order import AcceptedUpdate, in_merge_order
from fjord.federated.scaffold import ScaffoldState
from fjord.federated.server_optimizers import OptimizerMemory, ServerOptimizer, apply_mean
from fjord.federated.validation import validate_reply
from fjord.training.evaluate import ExampleScores, Score
from fjord.training.local import (
    Assignment,
    ClientTrainer,
    ClientUpdate,
    LocalTraining,
    Reduction,
    total_bytes,
)


@dataclass(frozen=True)
class RoundSchedule:
    """How long to train, and how the step size falls."""

    num_rounds: int
    cohort_size: int
    lr: float
    milestones: tuple[Fraction, ...] = (Fraction(1, 2), Fraction(3, 4))
    """After these shares of the rounds the step size is multiplied by `decay`."""
    decay: float = 0.1
    availability: Fraction = Fraction(1)
    """The share of clients that is available in a round."""
    eval_every: int = 1

    def lr_at(self, round_index: int) -> float:
        """Return the step size of a round."""
        passed = sum(round_index >= share * self.num_rounds for share in self.milestones)
        return self.lr * self.decay**passed

    def evaluates(self, round_index: int) -> bool:
        """Say whether the model is scored after this round."""
        return (round_index + 1) % self.eval_every == 0 or round_index + 1 == self.num_rounds


@dataclass
class TierRecord:
    """What the clients of one ceiling did in a round."""

    clients: int = 0
    examples: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    macs: int = 0


@dataclass
class RoundRecord:
    """What one round came to."""

    round_index: int
    target: Width
    lr: float
    loss: float = float("nan")
    examples: int = 0
    tiers: dict[Width, TierRecord] = field(default_factory=dict)
    shells: dict[Width, int] = field(default_factory=dict)
    """How many clients trained the units between each width and the one below."""
    dropped: dict[int, str] = field(default_factory=dict)
    """The clients whose update was not used, and why."""
    reduced: dict[int, str] = field(default_factory=dict)
    """The clients that trained a smaller part than they were sent, and why."""
    seconds: float = 0.0
    scores: dict[Width, Score] = field(default_factory=dict)
    tested: dict[Width, ExampleScores] = field(default_factory=dict, repr=False)
    simulated_seconds: float | None = None
    """How long the round lasts on the simulated clock, if there is one."""
    engine: dict[str, float] = field(default_factory=dict)
    """What the engine tells of the round: over a network its deadline, and the messages sent, answered and late."""


@dataclass
class ServerState:
    """All that rounds change beside the model; checkpoints hold it."""

    round_index: int = 0
    memory: OptimizerMemory = field(default_factory=dict)
    scaffold: ScaffoldState | None = None


@dataclass
class Federation:
    """One model in training over a population."""

    model: ElasticModel
    data: FederatedData
    devices: DevicePopulation
    method: Method
    space: WidthSpace
    """P."""
    target: Width
    schedule: RoundSchedule
    training: LocalTraining
    seed: int = 0
    step: ServerOptimizer | None = None
    """A server optimizer; None takes the mean as it is."""
    nova: bool = False
    state: ServerState = field(default_factory=ServerState)
    clock: SpeedTable | None = None
    """Simulated time; without it rounds have none."""
    take_all: bool = False
    """Whether weights that a client does not hold count as unchanged, in place of Eq. (1)."""

    def __post_init__(self) -> None:
        self.lowest = self.space.up_to(self.devices.tiers[0]).largest
        strongest = self.space.up_to(self.devices.tiers[-1]).largest
        self.places = SliceIndex(self.model)
        self.portions = SubmodelAllocator(
            self.model, self.method, self.space, self.target, self.lowest, self.seed, self.places
        )
        if not self.method.joins(self.portions.grant(0, 0, strongest)):
            raise UserError(
                f"method {self.method.name}: no client can take part in training width {self.target}, "
                f"the largest ceiling is {strongest}"
            )
        self._shells = [width for width in self.space.widths if width <= self.target]
        self.timer = self._timer(self.clock) if self.clock else None

    def _timer(self, clock: SpeedTable) -> ClientTimer:
        """Set up the simulated clock; what its table lacks shows here, before the first round."""
        lowered = self.devices.lowered_ceilings if isinstance(self.devices, VaryingDevices) else ()
        for tier in (
            *self.devices.tiers,
            *(low for low in lowered if low < self.devices.tiers[-1]),
        ):
            pace, grant = (
                clock.find_speed(tier),
                self.portions.grant(0, 0, self.space.up_to(tier).largest),
            )
            if self.method.joins(grant):
                held, _ = self.portions.given(grant)
                pace.training_seconds(
                    ClientWorkload(0, 0, 1, 1, held_width(self.model.plan, self.space, held))
                )
        return ClientTimer(
            clock, CostModel(self.model, self.data, self.training, self.seed), self.space
        )

    @property
    def targets(self) -> tuple[Width, ...]:
        """The widths of all models the method trains, this one among them."""
        return self.method.targets(self.space, self.lowest)

    def trainer(self) -> ClientTrainer:
        """Return what trains the clients, on this machine or on theirs."""
        return ClientTrainer(self.model, self.data, self.training, self.seed, self.portions)

    def rounds(self, engine: Engine) -> Iterator[RoundRecord]:
        """Train from where the state stands to the last round."""
        while self.state.round_index < self.schedule.num_rounds:
            started = time.perf_counter()
            record = self._round(engine, self.state.round_index)
            self.state.round_index += 1
            record.seconds = time.perf_counter() - started
            yield record

    def _round(self, engine: Engine, round_index: int) -> RoundRecord:
        record = RoundRecord(round_index, self.target, self.schedule.lr_at(round_index))
        merged = NormalisedMean(self.model, self.training) if self.nova else NestedMean(self.model)
        lap = RoundClock(self.timer) if self.timer else None
        tasks = self.tasks(round_index)
        replies = engine.train(self._in_time(tasks, record, lap) if lap else tasks)
        for answer in in_merge_order(self._answers(replies, record, lap)):
            self._take_in(answer, merged, record)
            del answer  # or it would stay in memory while the next ones are made
        if lap:
            # The late ones first: how far tasks are made ahead of replies depends on the workers.
            record.dropped, record.simulated_seconds = lap.late | record.dropped, lap.seconds
        record.engine = dict(getattr(engine, "facts", {}))  # only engines with messages have any
        if record.examples:
            record.loss /= record.examples
            if self.take_all:
                merged.take_all(self.model)
            apply_mean(self.model, merged, self.step, self.state.memory)
            if self.state.scaffold:
                self.state.scaffold.end_round()
        if self.schedule.evaluates(round_index):
            record.tested = engine.test(self.model, self.model.space.widths)
            record.scores = {width: tested.score() for width, tested in record.tested.items()}
        return record

    def tasks(self, round_index: int) -> Iterator[Assignment]:
        """Yield what each client of a round is sent, made when it is asked for."""
        for client_id, grant in self.cohort(round_index):
            yield self._task(client_id, grant)

    def task_at(self, ceiling: Width) -> Assignment:
        """Return what a client of this ceiling would be sent in the first round, whatever the devices are."""
        return self._task(0, self.portions.grant(0, 0, ceiling))

    def _task(self, client_id: int, grant: ClientContext) -> Assignment:
        held, space = self.portions.given(grant)
        where = self.places(held, space.widths)
        scaffold = self.state.scaffold
        correction = scaffold.correction(client_id, held, where) if scaffold else {}
        lr = self.schedule.lr_at(grant.round_index)
        return Assignment(
            client_id,
            grant.round_index,
            lr,
            held,
            space,
            take_tensors(self.model, where),
            correction,
        )

    def _in_time(
        self, tasks: Iterator[Assignment], record: RoundRecord, lap: RoundClock
    ) -> Iterator[Assignment]:
        """Yield the tasks of clients that can be back in time; the others are sent theirs, and waited for in vain."""
        for task in tasks:
            if lap.foresee(task, self.devices.ceiling(task.client_id, task.round_index)):
                yield task
            else:
                ceiling = self._ceiling(task.client_id, task.round_index)
                record.tiers.setdefault(ceiling, TierRecord()).bytes_down += task.bytes

    def cohort(self, round_index: int) -> list[tuple[int, ClientContext]]:
        """Return the clients of a round, the strongest first: their order is that of all sums, and balances workers."""
        chosen: list[tuple[int, ClientContext]] = []
        for client_id in ShuffledRange(
            self.data.num_clients, derive_seed(self.seed, "cohort", round_index)
        ):
            if len(chosen) == self.schedule.cohort_size:
                break
            chance = Fraction(derive_seed(self.seed, "available", round_index, client_id), 1 << 63)
            if chance < self.schedule.availability:
                grant = self._grant(client_id, round_index)
                if self.method.joins(grant):
                    chosen.append((client_id, grant))
        return sorted(chosen, key=lambda pair: (-pair[1].ceiling, pair[0]))

    def _grant(self, client_id: int, round_index: int) -> ClientContext:
        return self.portions.grant(client_id, round_index, self._ceiling(client_id, round_index))

    def _ceiling(self, client_id: int, round_index: int) -> Width:
        return self.usable(self.devices.ceiling(client_id, round_index), client_id)

    def usable(self, ceiling: Width, client_id: int) -> Width:
        """Return the widest width of P that a client can carry."""
        if ceiling < self.space.widths[0]:
            raise UserError(
                f"client {client_id}: ceiling {ceiling} is below the smallest width {self.space.widths[0]}"
            )
        return self.space.up_to(ceiling).largest

    def _answers(
        self,
        replies: Iterable[tuple[Assignment, ClientUpdate | str]],
        record: RoundRecord,
        lap: RoundClock | None,
    ) -> Iterator[AcceptedUpdate]:
        """Check all replies; yield the good ones, and drop and name the others."""
        for sent, reply in replies:
            ceiling = self._ceiling(sent.client_id, sent.round_index)
            task = reply if isinstance(reply, str) else validate_reply(sent, reply, self.portions)
            if lap:
                task = self._on_time(lap, sent, task, reply)
            if isinstance(task, str) or isinstance(reply, str):
                record.tiers.setdefault(ceiling, TierRecord()).bytes_down += sent.bytes
                record.dropped[sent.client_id] = str(task)
            else:
                if reply.reduced:
                    record.reduced[sent.client_id] = self._reduction(sent, ceiling, reply.reduced)
                trained = reply.reduced.ceiling if reply.reduced else ceiling
                yield AcceptedUpdate(
                    (-trained, sent.client_id), (-ceiling, sent.client_id), sent.bytes, task, reply
                )
            del sent, reply, task

    def _on_time(
        self, lap: RoundClock, sent: Assignment, task: Assignment | str, reply: ClientUpdate | str
    ) -> Assignment | str:
        """Take a client's time; return the task that it answers, or what is wrong: its answer, or that it is late."""
        usual = self.devices.ceiling(sent.client_id, sent.round_index)
        if isinstance(task, str) or isinstance(reply, str):
            lap.back(sent, usual)
            return task if isinstance(task, str) else str(reply)
        return lap.back(sent, usual, task, reply) or task

    def _reduction(self, sent: Assignment, ceiling: Width, reduced: Reduction) -> str:
        """Say what a client trained less than."""
        whole = sent.space.largest if self.method.nested else min(ceiling, self.target)
        return f"from {whole} to {reduced.ceiling}: {reduced.why}"

    def _take_in(self, answer: AcceptedUpdate, merged: NestedMean, record: RoundRecord) -> None:
        """Merge one answer and count it."""
        task, reply = answer.task, answer.update
        where = self.places(task.held, task.space.widths)
        if isinstance(merged, NormalisedMean):
            merged.learn(task, reply, where)
        else:
            merged.add(reply.tensors, where, reply.num_examples)
        if self.state.scaffold:
            self.state.scaffold.learn(task, reply, where)
        tier = record.tiers.setdefault(answer.ceiling, TierRecord())
        tier.clients, tier.examples = tier.clients + 1, tier.examples + reply.num_examples
        tier.bytes_down, tier.bytes_up = (
            tier.bytes_down + answer.bytes_down,
            tier.bytes_up + total_bytes(reply.tensors),
        )
        tier.macs += reply.macs
        record.loss = (
            0.0 if record.examples == 0 else record.loss
        ) + reply.loss * reply.num_examples
        record.examples += reply.num_examples
        self._count_shells(task, reply, record)

    def _count_shells(self, task: Assignment, update: ClientUpdate, record: RoundRecord) -> None:
        """Count the client for every shell of which it trained a unit."""
        reached, inner = max(update.reach), Fraction(0)
        for width in self._shells:
            trained = reached > inner and self._holds_shell(task.held, inner, width)
            record.shells[width] = record.shells.get(width, 0) + trained
            inner = width

    def _holds_shell(self, held: UnitSelection, inner: Fraction, width: Width) -> bool:
        for family in self.model.plan.families:
            units, first = held[family.name], family.unit_count(inner) if inner else 0
            at = int(torch.searchsorted(units, first))
            if at < len(units) and int(units[at]) < family.unit_count(width):
                return True
        return False
