"""No malformed update touches the model: it is refused with a reason, counted and named."""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import fed_oracles as fed
import numpy as np
import pytest
import torch
from fed_oracles import Setting, assignments
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fjord.core.width import Width
from fjord.elastic.model import ElasticModel
from fjord.federated.population import RoundClients
from fjord.federated.rounds import Federation
from fjord.federated.server_optimizers import FedAdam, FedAvgM
from fjord.federated.validation import find_fault
from fjord.training.assignment import Assignment, ClientUpdate, Rejected

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # torch calls some kinds of tensors a prototype
Spoil = Callable[[Assignment, ClientUpdate, random.Random], Any]


def good(task: Assignment, shift: float = 0.0) -> ClientUpdate:
    """Return a fine answer, made without training."""
    tensors = {
        k: t.detach() + (shift if t.is_floating_point() else 0) for k, t in task.tensors.items()
    }
    widest = task.space.largest
    return ClientUpdate(
        task.client_id, tensors, 4 + task.client_id, 0.5, {widest: 2}, {widest: 2}, 10
    )


def with_tensor(update: ClientUpdate, key: str, value: Any) -> ClientUpdate:
    return replace(update, tensors={**update.tensors, key: value})


def spoilt(key: str, value: Tensor, rng: random.Random, bad: float) -> Tensor:
    """Return a copy with one bad value."""
    flat = value.clone().reshape(-1)
    flat[rng.randrange(flat.numel())] = bad
    return flat.reshape(value.shape)


def floats(update: ClientUpdate) -> list[str]:
    return [key for key, t in update.tensors.items() if t.is_floating_point()]


def field(name: str, values: list[Any]) -> dict[str, Spoil]:
    return {
        f"{name} {i}: {_short(value)}": lambda task, update, rng, value=value: replace(
            update, **{name: value}
        )
        for i, value in enumerate(values)
    }


def _short(value: Any) -> str:
    try:
        return repr(value)[:40].replace("\n", " ")
    except ValueError:  # more digits than Python prints
        return "with 5000 digits"


def tensors(name: str, make: Callable[[Tensor, random.Random], Any]) -> dict[str, Spoil]:
    def spoil(task: Assignment, update: ClientUpdate, rng: random.Random) -> ClientUpdate:
        key = rng.choice(floats(update))
        return with_tensor(update, key, make(update.tensors[key], rng))

    return {name: spoil}


def one_wide(value: Tensor, rng: random.Random) -> Tensor:
    """Keep one index of an axis: it would broadcast."""
    axis = rng.choice([d for d, n in enumerate(value.shape) if n > 1])
    return value.narrow(axis, 0, 1)


def grown(value: Tensor, rng: random.Random) -> Tensor:
    return torch.cat([value, value[:1]])


def unkeyed(task: Assignment, update: ClientUpdate, rng: random.Random) -> ClientUpdate:
    gone = rng.choice(sorted(update.tensors))
    return replace(update, tensors={k: t for k, t in update.tensors.items() if k != gone})


def renamed(task: Assignment, update: ClientUpdate, rng: random.Random) -> ClientUpdate:
    old = rng.choice(sorted(update.tensors))
    return replace(
        update, tensors={f"{k}x" if k == old else k: t for k, t in update.tensors.items()}
    )


def integer(make: Callable[[Tensor], Tensor]) -> Spoil:
    return lambda task, update, rng: with_tensor(update, "seen", make(update.tensors["seen"]))


COUNTS: list[Any] = [
    0,
    -1,
    True,
    False,
    1.5,
    4.0,
    None,
    "3",
    2**60,
    10**5000,
    -(10**5000),
    math.nan,
    [4],
    (),
    b"4",
]
COUNTS += [np.float64(3), torch.tensor(4), Fraction(3)]
HALF, ONE = Width(1, 2), Width(1)
STEPS: list[Any] = [
    {},
    None,
    3,
    [2],
    "2",
    {ONE: 0},
    {ONE: -1},
    {ONE: 1.0},
    {ONE: True},
    {ONE: None},
    {Width(1, 3): 2},
]
STEPS += [
    {Width(7): 1},
    {"1": 2},
    {None: 1},
    {ONE: 2, "x": 1},
    {0.5: 2},
    {1.0: 2},
    {True: 2},
    {ONE: math.inf},
]
STEPS += [{ONE: 2**70}, {ONE: 10**5000}, {ONE: 10**12}, [(ONE, 2)], {ONE: torch.tensor(2)}]

SPOILS: dict[str, Spoil] = {
    **{
        f"a {type(v).__name__}": lambda task, update, rng, v=v: v
        for v in (None, 3, {}, [], b"x", object(), ValueError())
    },
    **field(
        "client_id",
        [-1, 10**9, None, "0", 0.5, math.nan, torch.tensor([0, 1]), np.array([0, 1]), [0], {}],
    ),
    **field("num_examples", COUNTS),
    **field(
        "loss", [math.nan, math.inf, -math.inf, None, "0.5", torch.tensor(0.5), True, [0.5], 1]
    ),
    **field("macs", [-1, None, 1.5, True, "7", math.nan, -(10**5000), 10**5000]),
    **field("steps", STEPS),
    **field("widest_steps", STEPS),
    **field("tensors", [None, [], {}, 7, "weights", torch.zeros(3)]),
    "no key": unkeyed,
    "another key": renamed,
    "one key more": lambda task, update, rng: with_tensor(update, "extra", torch.zeros(2)),
    "a key that is no text": lambda task, update, rng: with_tensor(update, 7, torch.zeros(2)),
    **tensors("a slice that would broadcast", one_wide),
    **tensors("a row too many", grown),
    **tensors("a row too few", lambda t, rng: t[:-1]),
    **tensors("an axis more", lambda t, rng: t[None]),
    **tensors("a flat tensor", lambda t, rng: t.reshape(-1) if t.dim() > 1 else t[:, None]),
    **tensors("a number for all", lambda t, rng: t.new_zeros(())),
    **tensors("no elements", lambda t, rng: t[:0]),
    **tensors("single precision", lambda t, rng: t.float()),
    **tensors("half precision", lambda t, rng: t.half()),
    **tensors("bfloat16", lambda t, rng: t.bfloat16()),
    **tensors("integers", lambda t, rng: t.long()),
    **tensors("booleans", lambda t, rng: t.bool()),
    **tensors("complex", lambda t, rng: t.to(torch.complex128)),
    **tensors("sparse", lambda t, rng: t.to_sparse()),
    **tensors("compressed", lambda t, rng: (t if t.dim() == 2 else t[:, None]).to_sparse_csr()),
    **tensors("nested", lambda t, rng: torch.nested.nested_tensor([t, t])),
    **tensors("on the meta device", lambda t, rng: t.to("meta")),
    **tensors(
        "quantised", lambda t, rng: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8)
    ),
    **tensors("an array", lambda t, rng: t.numpy()),
    **tensors("a list", lambda t, rng: t.tolist()),
    **tensors("nothing", lambda t, rng: None),
    **tensors("a module", lambda t, rng: nn.Linear(2, 2)),
    **{
        f"the value {bad:g}": lambda task, update, rng, bad=bad: with_tensor(
            update, key := rng.choice(floats(update)), spoilt(key, update.tensors[key], rng, bad)
        )
        for bad in (math.nan, math.inf, -math.inf, 1e300, -1e300, 1e21)
    },
    **tensors("all NaN", lambda t, rng: torch.full_like(t, math.nan)),
    "a counter of another type": integer(lambda t: t.int()),
    "a counter as a float": integer(lambda t: t.double()),
    "a counter with an axis": integer(lambda t: t[None]),
}
RAISES = st.sampled_from(sorted(SPOILS))


def federation(**changes: Any) -> Federation:
    setting = Setting(
        "counting",
        ceilings=("1/5", "2/5", "3/5", "1", "1"),
        sizes=(4,) * 5,
        method="fjord",
        rounds=1,
    )
    return replace(setting, **changes).make()


def first_task(client: int = 3) -> Assignment:
    return next(task for task in assignments(federation(), 0) if task.client_id == client)


class Fake:
    """An engine whose clients answer without training, some of them badly."""

    def __init__(
        self,
        federation: Federation,
        answers: dict[int, Callable[[Assignment], Any]],
        only: set[int] | None = None,
    ) -> None:
        self.federation, self.answers, self.only = federation, answers, only

    def clients(self, round_index: int) -> RoundClients:
        return self.federation.population.clients_in(round_index)

    def metadata(self) -> dict[str, float]:
        return {}

    def train(self, tasks: Iterable[Assignment]) -> Iterator[tuple[Assignment, Any]]:
        for task in tasks:
            if self.only is None or task.client_id in self.only:
                yield task, self.answers[task.client_id](task)

    def evaluate(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, Any]:
        return {}


def honest(task: Assignment) -> ClientUpdate:
    return good(task, 0.1 * (1 + task.client_id + task.round_index))


@pytest.mark.parametrize("name", SPOILS)
def test_a_malformed_update_is_refused_with_a_reason(name: str) -> None:
    task = first_task()
    for seed in range(20):
        fault = find_fault(task, SPOILS[name](task, good(task), random.Random(seed)))
        assert fault is not None, "it was accepted"
        assert fault
        assert len(fault) < 2000, "the reason is a whole page"


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda t, u: "text", "str"),
        (lambda t, u: replace(u, client_id=77), "77"),
        (lambda t, u: replace(u, num_examples=-3), r"num_examples.*-3"),
        (lambda t, u: replace(u, loss=math.nan), "loss.*nan"),
        (lambda t, u: replace(u, macs=-2), "macs.*-2"),
        (lambda t, u: replace(u, steps={}), "steps"),
        (lambda t, u: replace(u, widest_steps={Width(3, 7): 1}), r"widest_steps.*3.*7"),
        (lambda t, u: replace(u, tensors=[]), "tensors.*list"),
        (lambda t, u: with_tensor(u, "strange", torch.zeros(1)), "strange"),
        (
            lambda t, u: replace(u, tensors={k: v for k, v in u.tensors.items() if k != "seen"}),
            "seen",
        ),
        (
            lambda t, u: with_tensor(u, "first.weight", u.tensors["first.weight"][:1]),
            r"first\.weight.*\(1, 4\)",
        ),
        (
            lambda t, u: with_tensor(u, "first.weight", u.tensors["first.weight"].float()),
            r"first\.weight.*float32",
        ),
        (
            lambda t, u: with_tensor(u, "head.bias", u.tensors["head.bias"] / 0),
            r"head\.bias.*finite",
        ),
        (
            lambda t, u: with_tensor(u, "head.bias", u.tensors["head.bias"].to_sparse()),
            r"head\.bias.*dense",
        ),
    ],
)
def test_the_reason_names_what_is_wrong(
    spoil: Callable[[Assignment, ClientUpdate], Any], named: str
) -> None:
    task = first_task()
    fault = find_fault(task, spoil(task, good(task)))
    assert fault is not None
    assert re.search(named, fault), fault


@pytest.mark.parametrize("client", range(5))
def test_a_fine_update_is_accepted(client: int) -> None:
    task = first_task(client)
    assert find_fault(task, good(task)) is None
    assert find_fault(task, good(task, 1e6)) is None
    widths = task.space.widths
    several = replace(
        good(task),
        steps=dict.fromkeys(widths, 3),
        widest_steps={widths[0]: 1},
        num_examples=2**39,
        macs=0,
    )
    assert find_fault(task, several) is None


def test_an_update_as_the_trainer_makes_it_is_accepted() -> None:
    for method in ("fjord", "fjord-kd", "fjord-efd", "fedrolex", "efd"):
        for kind in ("batchnorm", "lstm", "counting"):
            setting = Setting(kind, method, ceilings=("1/5", "3/5", "1"), sizes=(4, 4, 4))
            made = setting.make()
            engine = fed.Serial(made)
            (record,) = made.rounds(engine)
            assert record.dropped == {}
            assert record.examples == 12


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), RAISES), min_size=1, max_size=12), st.integers(0, 2**32)
)
def test_thousands_of_malformed_updates_leave_the_model_as_if_they_had_not_come(
    bad: list[tuple[int, str]], seed: int
) -> None:
    """Each example is a run of rounds; in each some of five clients answer badly."""
    rng = random.Random(seed)
    kinds: list[dict[int, str]] = []
    for client, name in bad:
        free = next((r for r in kinds if client not in r), None)
        if free is None:
            kinds.append(free := {})
        free[client] = name
    changes = {
        "rounds": len(kinds),
        "step": rng.choice([None, FedAvgM(), FedAdam()]),
        "scaffold": rng.random() < 0.5,
    }
    attacked, clean = federation(**changes), federation(**changes)

    def answer(task: Assignment) -> Any:
        name = kinds[task.round_index].get(task.client_id)
        return honest(task) if name is None else SPOILS[name](task, honest(task), rng)

    everyone, records = dict.fromkeys(range(5), answer), []
    for record in attacked.rounds(Fake(attacked, everyone)):
        records.append(record)
    rounds = iter(kinds)
    engine = Fake(clean, dict.fromkeys(range(5), honest))
    engine.only = set(range(5)) - set(next(rounds))
    for _ in clean.rounds(engine):
        engine.only = set(range(5)) - set(next(rounds, {}))
    fed.assert_identical(fed.snapshot(attacked.model), fed.snapshot(clean.model))
    fed.assert_identical(attacked.server.memory, clean.server.memory)
    if attacked.scaffold:
        fed.assert_identical(attacked.scaffold.control, clean.scaffold.control)
    for record, spoilt_ones in zip(records, kinds, strict=True):
        assert record.dropped.keys() == spoilt_ones.keys()
        assert all(isinstance(why, str) and why for why in record.dropped.values())
        assert record.examples == sum(4 + c for c in range(5) if c not in spoilt_ones)
        assert sum(tier.clients for tier in record.tiers.values()) == 5 - len(spoilt_ones)


@pytest.mark.parametrize(
    "more", [{}, {"nova": True}, {"scaffold": True}, {"step": FedAdam()}, {"step": FedAvgM()}]
)
def test_a_round_of_bad_updates_only_leaves_everything_bit_identical(more: dict) -> None:
    made = federation(rounds=2, **more)
    rng = random.Random(1)
    engine = Fake(made, dict.fromkeys(range(5), honest))
    rounds = made.rounds(engine)
    assert next(rounds).dropped == {}
    before = fed.snapshot(made.model)
    memory = {k: t.clone() for k, t in made.server.memory.items()}
    control = {k: t.clone() for k, t in made.scaffold.control.items()} if made.scaffold else {}
    names = [
        "the value nan",
        "a slice that would broadcast",
        "all NaN",
        "no key",
        "single precision",
    ]
    answers = {
        c: lambda task, name=name: SPOILS[name](task, honest(task), rng)
        for c, name in enumerate(names)
    }
    engine.answers = answers
    record = next(rounds)
    assert set(record.dropped) == set(range(5))
    assert record.examples == 0
    assert math.isnan(record.loss)
    fed.assert_identical(fed.snapshot(made.model), before)
    fed.assert_identical(made.server.memory, memory)
    if made.scaffold:
        fed.assert_identical(made.scaffold.control, control)


@pytest.mark.parametrize("more", [{"nova": True}, {"scaffold": True}])
@pytest.mark.parametrize(
    "steps", [{ONE: 2**70}, {ONE: 2**62, HALF: 2**62}, {ONE: 10**30}], ids=["2**70", "sum", "1e30"]
)
def test_an_absurd_number_of_steps_does_not_reach_the_strategies(more: dict, steps: dict) -> None:
    """FedNova walks through them one by one, SCAFFOLD counts them in 64 bits."""
    made = federation(space=fed.WidthSpace.of(["1/2", "1"]), ceilings=("1",) * 5, **more)
    answers = dict.fromkeys(range(5), honest)
    answers[3] = lambda task: replace(honest(task), steps=steps, widest_steps=steps)
    asked = next(task for task in assignments(made, 0) if task.client_id == 3)
    assert find_fault(asked, answers[3](asked)) is not None  # or what follows would not end
    (record,) = made.rounds(Fake(made, answers))
    assert set(record.dropped) == {3}


def test_what_an_engine_says_went_wrong_is_kept_as_the_reason() -> None:
    made = federation()
    answers = dict.fromkeys(range(5), honest) | {
        2: lambda task: Rejected("the device went away"),
        4: lambda task: Rejected(""),
    }
    (record,) = made.rounds(Fake(made, answers))
    assert record.dropped == {2: "the device went away", 4: ""}
    assert sum(tier.clients for tier in record.tiers.values()) == 3


@pytest.mark.parametrize("step", [None, FedAvgM(), FedAdam()], ids=["mean", "fedavgm", "fedadam"])
@settings(max_examples=15, deadline=None)
@given(value=st.floats(-1e20, 1e20), examples=st.integers(1, 2**40 - 1))
@example(value=1e20, examples=2**40 - 1)
def test_whatever_is_accepted_leaves_model_and_memory_finite_in_single_precision(
    step: object, value: float, examples: int
) -> None:
    made = federation(step=step, rounds=2)
    for t in made.model.tensors.values():
        t.data = t.data.float() if t.is_floating_point() else t.data

    def answer(task: Assignment) -> ClientUpdate:
        tensors = {
            k: torch.full_like(t, value) if t.is_floating_point() else t
            for k, t in task.tensors.items()
        }
        return replace(good(task), tensors=tensors, num_examples=examples)

    list(made.rounds(Fake(made, dict.fromkeys(range(5), answer))))
    assert all(bool(t.isfinite().all()) for t in made.model.tensors.values())
    assert all(bool(t.isfinite().all()) for t in made.server.memory.values())


def test_a_finite_loss_does_not_make_the_loss_of_a_round_infinite() -> None:
    made = federation()
    answers = dict.fromkeys(range(5), lambda task: replace(honest(task), loss=1e308))
    (record,) = made.rounds(Fake(made, answers))
    assert math.isfinite(record.loss) or len(record.dropped) == 5


def test_tensors_that_track_gradients_leave_no_graph_behind() -> None:
    made = federation(rounds=1, scaffold=True)

    def answer(task: Assignment) -> ClientUpdate:
        update = honest(task)
        tracked = {
            k: t.clone().requires_grad_() * 1 if t.is_floating_point() else t
            for k, t in update.tensors.items()
        }
        return replace(update, tensors=tracked)

    (record,) = made.rounds(Fake(made, dict.fromkeys(range(5), answer)))
    if not record.dropped:
        kept = [*made.scaffold.control.values(), *made.server.memory.values()]
        kept += [t for own in made.scaffold.clients.values() for t in own.tensors.values()]
        assert not any(t.requires_grad for t in kept)
