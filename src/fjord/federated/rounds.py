"""Algorithm 1: the one round loop, whatever the method and the engine."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fjord.core.errors import UserError
from fjord.core.seeding import ShuffledRange, derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import FederatedData
from fjord.devices.speed_table import SpeedTable
from fjord.devices.speeds import ClientWorkload
from fjord.devices.tiers import DevicePopulation, VaryingDevices
from fjord.elastic.client_model import SliceIndex, take_tensors
from fjord.elastic.model import ElasticModel
from fjord.federated.aggregation import Aggregator, NestedMean
from fjord.federated.allocation import SubmodelAllocator
from fjord.federated.clock import ClientTimer, CostModel, SimulatedClock, covering_width
from fjord.federated.engine import Engine, Reply
from fjord.federated.merge_order import MergeQueue
from fjord.federated.methods import ClientContext, Method
from fjord.federated.population import Population, RoundClients
from fjord.federated.records import RoundRecord, ShellCounter
from fjord.federated.scaffold import ScaffoldState
from fjord.federated.server_optimizers import ServerOptimizer, ServerUpdate
from fjord.federated.validation import AcceptedUpdate, validate_reply
from fjord.training.assignment import Assignment, Rejected
from fjord.training.local import ClientTrainer, LocalTraining
from fjord.training.schedule import scheduled_lr

MakeAggregator = Callable[[ElasticModel, SliceIndex], Aggregator]
"""Makes the aggregator of one round."""


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
        return scheduled_lr(
            self.lr,
            round_index,
            total=self.num_rounds,
            milestones=self.milestones,
            decay=self.decay,
        )

    def evaluates(self, round_index: int) -> bool:
        """Say whether the model is scored after this round."""
        done = round_index + 1
        return done % self.eval_every == 0 or done == self.num_rounds


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
    """The width of the model that is trained."""
    schedule: RoundSchedule
    training: LocalTraining
    seed: int = 0
    server_optimizer: ServerOptimizer | None = None
    """None takes the mean as it is."""
    make_aggregator: MakeAggregator = NestedMean
    scaffolded: bool = False
    """Whether clients are corrected by control variates (SCAFFOLD)."""
    speeds: SpeedTable | None = None
    """Simulated time; without it rounds have none."""

    def __post_init__(self) -> None:
        self.round_index = 0
        self.server = ServerUpdate(self.server_optimizer)
        self.slice_index = SliceIndex(self.model)
        self.lowest = self.space.up_to(self.devices.tiers[0]).largest
        self.allocator = SubmodelAllocator(
            model=self.model,
            method=self.method,
            space=self.space,
            target=self.target,
            lowest=self.lowest,
            seed=self.seed,
            slice_index=self.slice_index,
        )
        self.scaffold: ScaffoldState | None = None
        if self.scaffolded:
            self.scaffold = ScaffoldState(self.model, self.data.num_clients, self.slice_index)
        trained_widths = [width for width in self.space.widths if width <= self.target]
        self.shell_counter = ShellCounter(self.model.plan, trained_widths)
        self._check_that_someone_joins()
        self.timer = self._make_timer(self.speeds) if self.speeds else None

    def _check_that_someone_joins(self) -> None:
        strongest = self.space.up_to(self.devices.tiers[-1]).largest
        if not self.method.joins(self.allocator.client_context(0, 0, strongest)):
            raise UserError(
                f"method {self.method.name}: no client can take part in training width "
                f"{self.target}, the largest ceiling is {strongest}"
            )

    def _make_timer(self, speeds: SpeedTable) -> ClientTimer:
        """Set up simulated time; what the table of speeds lacks shows here, before any round."""
        strongest = self.devices.tiers[-1]
        tiers = list(self.devices.tiers)
        if isinstance(self.devices, VaryingDevices):
            tiers += [low for low in self.devices.lowered_ceilings if low < strongest]
        for tier in tiers:
            speed = speeds.find_speed(tier)
            context = self.allocator.client_context(0, 0, self.space.up_to(tier).largest)
            if self.method.joins(context):
                units, _ = self.allocator.select_submodel(context)
                width = covering_width(self.model.plan, self.space, units)
                speed.training_seconds(ClientWorkload(0, 0, 1, 1, width))
        cost_model = CostModel(self.model, self.data, self.training, self.seed)
        return ClientTimer(speeds, cost_model, self.space, self.allocator)

    @property
    def population(self) -> Population:
        """The clients, as they are simulated."""
        return Population(
            num_clients=self.data.num_clients,
            devices=self.devices,
            availability=self.schedule.availability,
            seed=self.seed,
        )

    @property
    def targets(self) -> tuple[Width, ...]:
        """The widths of all models the method trains, this one among them."""
        return self.method.targets(self.space, self.lowest)

    def trainer(self) -> ClientTrainer:
        """Return what trains the clients, on this machine or on theirs."""
        return ClientTrainer(self.model, self.data, self.training, self.seed, self.allocator)

    def rounds(self, engine: Engine) -> Iterator[RoundRecord]:
        """Train from the current round to the last one."""
        if self.timer:
            engine = SimulatedClock(engine, self.timer)
        while self.round_index < self.schedule.num_rounds:
            started = time.perf_counter()
            record = self.run_round(engine, self.round_index)
            self.round_index += 1
            record.seconds = time.perf_counter() - started
            yield record

    def run_round(self, engine: Engine, round_index: int) -> RoundRecord:
        """Run one round: choose clients, let them train, merge their updates, score the model."""
        record = RoundRecord(round_index, self.target, self.schedule.lr_at(round_index))
        aggregator = self.make_aggregator(self.model, self.slice_index)
        assignments = self.assignments(engine.clients(round_index))
        queue = MergeQueue()
        for assignment, reply in engine.train(assignments):
            for accepted in self._accept(assignment, reply, record, queue):
                self._merge(accepted, aggregator, record)
                del accepted
            del assignment, reply  # or they would stay in memory while the next ones are made
        for accepted in queue.rest():
            self._merge(accepted, aggregator, record)
        record.finish_loss()
        if record.examples:
            self.server.apply(self.model, aggregator)
            if self.scaffold:
                self.scaffold.end_round()
        self._describe_engine(engine, record)
        if self.schedule.evaluates(round_index):
            self._evaluate(engine, record)
        return record

    def assignments(self, clients: RoundClients) -> "RoundAssignments":
        """Return what the clients of a round are sent."""
        return RoundAssignments(self, self.select_cohort(clients))

    def select_cohort(self, clients: RoundClients) -> list[ClientContext]:
        """Choose the clients of a round at random among those that are there and can join.

        The strongest come first: this order is that of all sums, and it balances workers.
        """
        cohort: list[ClientContext] = []
        round_index = clients.round_index
        seed = derive_seed(self.seed, "cohort", round_index)
        for client_id in ShuffledRange(clients.num_clients, seed):
            if len(cohort) == self.schedule.cohort_size:
                break
            device_ceiling = clients.ceiling(client_id)
            if device_ceiling is None:
                continue
            ceiling = self.allocator.usable_ceiling(client_id, device_ceiling)
            context = self.allocator.client_context(client_id, round_index, ceiling)
            if self.method.joins(context):
                cohort.append(context)
        return sorted(cohort, key=lambda context: (-context.ceiling, context.client_id))

    def assign(self, context: ClientContext) -> Assignment:
        """Return what a client is sent."""
        units, space = self.allocator.select_submodel(context)
        index = self.slice_index(units, space.widths)
        correction = {}
        if self.scaffold:
            correction = self.scaffold.correction(context.client_id, units, index)
        return Assignment(
            client_id=context.client_id,
            round_index=context.round_index,
            ceiling=context.ceiling,
            lr=self.schedule.lr_at(context.round_index),
            units=units,
            space=space,
            tensors=take_tensors(self.model, index),
            correction=correction,
        )

    def assign_at(self, ceiling: Width) -> Assignment:
        """Return what a client of this ceiling would be sent in the first round."""
        return self.assign(self.allocator.client_context(0, 0, ceiling))

    def _accept(
        self, assignment: Assignment, reply: Reply, record: RoundRecord, queue: MergeQueue
    ) -> Iterator[AcceptedUpdate]:
        """Validate a reply; return the updates whose turn to be merged has come."""
        outcome = validate_reply(assignment, reply, self.allocator)
        if isinstance(outcome, Rejected):
            record.count_rejected(assignment, outcome)
            return iter(())
        if outcome.update.reduction:
            record.reduced[assignment.client_id] = self._describe_reduction(outcome)
        return queue.add(outcome)

    def _describe_reduction(self, accepted: AcceptedUpdate) -> str:
        sent = accepted.sent
        reduction = accepted.update.reduction
        assert reduction is not None
        width = sent.space.largest if self.method.nested else min(sent.ceiling, self.target)
        return f"from {width} to {reduction.ceiling}: {reduction.reason}"

    def _merge(self, accepted: AcceptedUpdate, aggregator: Aggregator, record: RoundRecord) -> None:
        aggregator.add(accepted)
        if self.scaffold:
            self.scaffold.add(accepted)
        record.count_accepted(accepted)
        self.shell_counter.count(accepted, record.shells)

    def _describe_engine(self, engine: Engine, record: RoundRecord) -> None:
        metadata = dict(engine.metadata())
        record.simulated_seconds = metadata.pop("simulated_seconds", None)
        record.engine = metadata

    def _evaluate(self, engine: Engine, record: RoundRecord) -> None:
        record.example_scores = engine.evaluate(self.model, self.model.space.widths)
        for width, scores in record.example_scores.items():
            record.scores[width] = scores.score()

    def state_dict(self) -> dict[str, Any]:
        """Return all that rounds change: tensors, and plain data such as the next round."""
        state: dict[str, Any] = {"round": self.round_index, "clients": {}}
        for key, tensor in self.model.state_dict().items():
            state[f"model/{key}"] = tensor
        state |= self.server.state_dict()
        if self.scaffold:
            state |= self.scaffold.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        self.round_index = state["round"]
        weights = {}
        for key, tensor in state.items():
            if key.startswith("model/"):
                weights[key.removeprefix("model/")] = tensor
        self.model.load_state_dict(weights)
        self.server.load_state_dict(state)
        if self.scaffold:
            self.scaffold.load_state_dict(state)


@dataclass(frozen=True)
class RoundAssignments:
    """What the clients of a round are sent: made one at a time, and always the same."""

    federation: Federation
    cohort: list[ClientContext]

    def __iter__(self) -> Iterator[Assignment]:
        """Yield the assignments in the order of the cohort."""
        for client in self.cohort:
            # A new context: its generator must be as it was, however often assignments are made.
            context = self.federation.allocator.client_context(
                client.client_id, client.round_index, client.ceiling
            )
            yield self.federation.assign(context)

    def __len__(self) -> int:
        return len(self.cohort)
