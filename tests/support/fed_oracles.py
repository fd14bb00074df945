"""Tiny federations, and slow, literal federated learning from the papers' equations."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from holders import (  # noqa: F401  (tests name some as fed.NAME)
    Reply,
    State,
    cut_out,
    eq1_literal,
    first_units,
    holds,
    mean_of_holders,
    random_state,
    slice_of,
    unit_masks,
)
from literal import LiteralClient, plain_sgd, weighted_mean  # noqa: F401
from tiny_models import FIFTHS, _made, dense, elastic, tiny_data  # noqa: F401
from torch import Tensor, nn

from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.devices.tiers import DevicePopulation, ListedDevices
from fjord.elastic.model import ElasticModel
from fjord.federated.aggregation import NestedMean
from fjord.federated.fednova import NormalisedMean
from fjord.federated.methods import ClientContext, Method, find_method
from fjord.federated.population import RoundClients
from fjord.federated.rounds import Federation, RoundAssignments, RoundSchedule
from fjord.training.assignment import Assignment, ClientUpdate
from fjord.training.local import ClientTrainer, LocalTraining

WHOLE = Width(1)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def snapshot(model: ElasticModel) -> State:
    return {key: t.clone() for key, t in model.state_dict().items()}


def assert_close(found: State, expected: State, tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype, key
        error = float((found[key].double() - value.double()).abs().max()) if value.numel() else 0.0
        assert error <= tolerance * max(1.0, float(value.double().abs().max())), (
            f"{key}: off by {error:.2e}"
        )


def assert_identical(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    wrong = [key for key, value in expected.items() if not torch.equal(found[key], value)]
    assert not wrong, f"changed: {wrong}"


# --------------------------------------------------------------------------------- tiny federations


class Serial:
    """An engine that trains one client after the other; answers can be changed on the way."""

    def __init__(
        self,
        federation: Federation,
        change: Callable[[Assignment, ClientUpdate], Any] | None = None,
    ) -> None:
        self.trainer = ClientTrainer(
            federation.model, federation.data, federation.training, federation.seed
        )
        self.federation = federation
        self.change = change
        self.tasks: list[Assignment] = []
        self.updates: list[ClientUpdate] = []

    def train(self, tasks: Iterable[Assignment]) -> Iterator[tuple[Assignment, Any]]:
        for task in tasks:
            update = self.trainer(task)
            kept = {
                k: v.clone() for k, v in task.tensors.items()
            }  # what is sent are views of the model
            self.tasks.append(replace(task, tensors=kept))
            self.updates.append(update)
            yield task, self.change(task, update) if self.change else update

    def clients(self, round_index: int) -> RoundClients:
        return self.federation.population.clients_in(round_index)

    def metadata(self) -> dict[str, float]:
        return {}

    def evaluate(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, Any]:
        return {}

    def __enter__(self) -> "Serial":
        return self

    def __exit__(self, *error: object) -> None:
        pass


@dataclass(frozen=True)
class Setting:
    """A federation in a few words."""

    kind: str = "dense"
    method: str | Method = "fjord"
    ceilings: tuple[str, ...] = ("1", "1", "1")
    sizes: tuple[int, ...] = (8, 8, 8)
    space: WidthSpace = FIFTHS
    rounds: int = 1
    cohort: int | None = None
    lr: float = 0.1
    milestones: tuple[Fraction, ...] = ()
    batch: int = 4
    epochs: int = 1
    momentum: float = 0.0
    prox: float = 0.0
    scaffold: bool = False
    nova: bool = False
    step: Any = None
    seed: int = 11
    availability: Fraction = Fraction(1)
    target: Width = WHOLE
    norms: str = "layers"
    devices: DevicePopulation | None = field(default=None, compare=False)

    def make(self) -> Federation:
        method = find_method(self.method) if isinstance(self.method, str) else self.method
        _, model = elastic(
            self.kind, self.space if method.nested else WidthSpace.of([self.target]), self.norms
        )
        data = tiny_data(self.kind, self.sizes)
        schedule = RoundSchedule(
            self.rounds,
            len(self.sizes) if self.cohort is None else self.cohort,
            self.lr,
            milestones=self.milestones,
            availability=self.availability,
        )
        training = LocalTraining(
            method.objective, self.batch, self.epochs, momentum=self.momentum, prox=self.prox
        )
        return Federation(
            model,
            data,
            self.devices or ListedDevices([Fraction(c) for c in self.ceilings]),
            method,
            self.space,
            self.target,
            schedule,
            training,
            self.seed,
            server_optimizer=self.step,
            make_aggregator=partial(NormalisedMean, training=training) if self.nova else NestedMean,
            scaffolded=self.scaffold,
        )

    def net(self) -> nn.Module:
        method = find_method(self.method) if isinstance(self.method, str) else self.method
        return _made(
            self.kind, self.space if method.nested else WidthSpace.of([self.target]), self.norms
        )[0]


def cohort_of(federation: Federation, round_index: int) -> list[tuple[int, ClientContext]]:
    """Return the clients of a round, with what is known of each."""
    clients = federation.population.clients_in(round_index)
    return [(context.client_id, context) for context in federation.select_cohort(clients)]


def assignments(federation: Federation, round_index: int) -> RoundAssignments:
    """Return what the clients of a round are sent."""
    return federation.assignments(federation.population.clients_in(round_index))


def train(federation: Federation) -> tuple[State, Serial]:
    """Train to the last round; return the final weights and the engine."""
    engine = Serial(federation)
    for _ in federation.rounds(engine):
        pass
    return snapshot(federation.model), engine


def batches(federation: Federation, client: int, round_index: int) -> list[tuple[Tensor, Tensor]]:
    """Return the minibatches of a client, by the named generator of each epoch."""
    how, (inputs, targets) = federation.training, federation.data.examples(client)
    seed = derive_seed(federation.seed, "client", round_index, client)
    found = []
    for epoch in range(how.epochs):
        generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
        order = torch.randperm(len(inputs), generator=generator)
        found += [(inputs[rows], targets[rows]) for rows in order.split(how.batch_size)]
    return found


def sampled_widths(
    federation: Federation, client: int, round_index: int, ceiling: Width, steps: int
) -> list[Width]:
    """Draw p ~ D_P given p <= ceiling, once for each step."""
    rng = random.Random(derive_seed(federation.seed, "client", round_index, client, "width"))
    space = federation.space.up_to(ceiling)
    return [space.sample(rng) for _ in range(steps)]


# --------------------------------------------------------------------- Algorithm 1, taken literally


def trained_literally(
    setting: Setting,
    federation: Federation,
    state: State,
    client: int,
    t: int,
    correction: State | None = None,
) -> LiteralClient:
    """Train one client of a round from the global weights (Algorithm 1, lines 4 to 7)."""
    ceiling = Fraction(setting.ceilings[client])
    largest = max(w for w in setting.space.widths if w <= ceiling)
    mine = LiteralClient(setting.net(), federation.model, state, setting.lr, setting.momentum)
    data = batches(federation, client, t)
    for batch, width in zip(
        data, sampled_widths(federation, client, t, ceiling, len(data)), strict=True
    ):
        teacher = largest if setting.method == "fjord-kd" else None
        mine.step(width, batch, teacher, prox=setting.prox, correction=correction)
    return mine


def algorithm1(setting: Setting) -> State:
    """Algorithm 1, with all clients in every round."""
    federation, net = setting.make(), setting.net()
    model, state = federation.model, snapshot(federation.model)
    for t in range(setting.rounds):
        replies = []
        for client, ceiling in enumerate(map(Fraction, setting.ceilings)):
            largest = max(w for w in setting.space.widths if w <= ceiling)
            mine = trained_literally(setting, federation, state, client, t)
            replies.append(Reply(largest, setting.sizes[client], mine.state))
        state = eq1_literal(net, model, state, replies, setting.space)
    return state
