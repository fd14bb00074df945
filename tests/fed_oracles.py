"""Slow, literal federated learning, written from the papers' equations, and tiny tasks to run it on."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import fjord
import motifs
import oracles
from fjord.data.federated import Partitioned, partition
from fjord.devices.tiers import Devices, Listed
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import Kept
from fjord.federation import Federation, Schedule, ServerState
from fjord.local import LocalTraining, Task, Trainer, Update
from fjord.methods import Method, find_method
from fjord.models import femnist_cnn
from fjord.seeding import derive
from fjord.strategies.scaffold import Scaffold
from fjord.width import Width, WidthSpace, uniform

State = dict[str, Tensor]
FIFTHS = uniform(5)
WHOLE = Width(1)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


# ---------------------------------------------------------------------------------------------- tiny models


class Counting(nn.Module):
    """A dense net with an integer buffer and a buffer along an elastic axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 10), nn.Linear(10, 3)
        self.register_buffer("scale", torch.ones(10))
        self.register_buffer("seen", torch.tensor(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)) * self.scale)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))


def lstm() -> nn.Module:
    return motifs.Recurrent(nn.LSTM, num_layers=2)


BUILDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "dense": (dense, lambda: torch.randn(2, 4)),
    "counting": (Counting, lambda: torch.randn(2, 4)),
    "cnn": (femnist_cnn, lambda: torch.randn(2, 1, 28, 28)),
    "lstm": (lstm, lambda: motifs.tokens()[0]),
    "batchnorm": (motifs.Residual, lambda: torch.randn(2, 3, 8, 8)),
}


@lru_cache(maxsize=32)
def _made(kind: str, space: WidthSpace, norms: Any) -> tuple[nn.Module, ElasticModel]:
    torch.manual_seed(3)
    build, example = BUILDS[kind]
    net = oracles.randomise(build())
    inputs = example()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return net, fjord.elasticize(net, inputs, widths=space, norms=norms)


def elastic(kind: str, space: WidthSpace = FIFTHS, norms: Any = "layers") -> tuple[nn.Module, ElasticModel]:
    """Return a plain net in double precision with awkward weights, and a fresh elastic model of it."""
    net, model = _made(kind, space, norms)
    return net, copy.deepcopy(model)


def snapshot(model: ElasticModel) -> State:
    return {key: t.clone() for key, t in model.state_dict().items()}


# --------------------------------------------------------------------------- who holds what, and Eq. (1)

_MASKS: dict[tuple[Any, ...], State] = {}


def unit_masks(net: nn.Module, model: ElasticModel, kept: Kept) -> dict[str, Tensor]:
    """Say of each weight of the full net whether it belongs to the kept units, from the definition of a family."""
    key = (id(net), *((name, tuple(units.tolist())) for name, units in sorted(kept.items())))
    if key not in _MASKS:
        _MASKS[key] = {name: m.bool() for name, m in oracles.masks(net, model.plan, kept).items()}
    return _MASKS[key]


def first_units(model: ElasticModel, width: Fraction) -> Kept:
    return {f.name: torch.arange(oracles.first_units(width, f.units)) for f in model.plan.families}


def holds(net: nn.Module, model: ElasticModel, held: Kept, widths: Iterable[Width]) -> dict[str, Tensor]:
    """Say of each stored element whether a client with these units and these widths holds it."""
    per_unit, widths = unit_masks(net, model, held), frozenset(widths)
    known = (id(per_unit), widths)
    if known in _MASKS:
        return _MASKS[known]
    found: dict[str, Tensor] = {}
    for key, tensor in model.tensors.items():
        name, _, width = key.partition("@")
        if not width:
            found[key] = per_unit[name]
        elif Fraction(width) not in widths:
            found[key] = torch.zeros(tensor.shape, dtype=torch.bool)
        else:  # stored are the first units of that width, of which the client has those it holds
            stored = unit_masks(net, model, first_units(model, Fraction(width)))[name]
            found[key] = per_unit[name][stored].reshape(tensor.shape)
    _MASKS[known] = found
    return found


def cut_out(full: Tensor, mask: Tensor) -> Tensor:
    """Cut the box of held elements out of a full-size tensor."""
    if full.dim() == 0:
        return full.clone()
    shape = [int(mask.movedim(d, 0).reshape(mask.shape[d], -1).any(1).sum()) for d in range(mask.dim())]
    return full[mask].reshape(shape).clone()


def slice_of(full: State, mask: dict[str, Tensor]) -> State:
    return {key: cut_out(t, mask[key]) for key, t in full.items() if bool(mask[key].any())}


@dataclass(frozen=True)
class Reply:
    """What a client sent, as full-size tensors of which only its own part means anything."""

    ceiling: Width
    num_examples: int
    full: State


def eq1_literal(net: nn.Module, model: ElasticModel, current: State, replies: list[Reply], space: WidthSpace) -> State:
    """Eq. (1): for s_1 < ... < s_k the block w_{s_j} without w_{s_{j-1}} is averaged over clients with p_max >= s_j."""
    result = {key: t.clone() for key, t in current.items()}
    inner = {key: torch.zeros(t.shape, dtype=torch.bool) for key, t in current.items()}
    for s in space.widths:
        held = [reply for reply in replies if reply.ceiling >= s]
        outer = holds(net, model, first_units(model, s), [w for w in space.widths if w <= s])
        for key in current:
            block = outer[key] & ~inner[key]
            if held and bool(block.any()):
                total = sum(reply.num_examples * reply.full[key].double() for reply in held)
                mean = total / sum(reply.num_examples for reply in held)
                mean = mean if current[key].is_floating_point() else mean.round()
                result[key][block] = mean.to(current[key].dtype)[block]
        inner = outer
    return result


def mean_of_holders(current: State, replies: list[tuple[dict[str, Tensor], int, State]]) -> State:
    """Take each element by itself: the mean over those that hold it, or what it was. Replies are (mask, n, full)."""
    result = {key: t.clone() for key, t in current.items()}
    for key, tensor in current.items():
        flat, masks = result[key].reshape(-1), [mask[key].reshape(-1).tolist() for mask, _, _ in replies]
        values = [full[key].reshape(-1).tolist() for _, _, full in replies]
        for place in range(tensor.numel()):
            mine = [(n, v[place]) for (_, n, _), m, v in zip(replies, masks, values, strict=True) if m[place]]
            if mine:
                mean = sum(n * v for n, v in mine) / sum(n for n, _ in mine)
                flat[place] = mean if tensor.is_floating_point() else round(mean)
    return result


def random_state(like: State, seed: int) -> State:
    """Return other values for every tensor, in its own type."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype)
        if t.is_floating_point()
        else torch.randint(0, 1000, t.shape, generator=generator)
        for key, t in like.items()
    }


def assert_close(found: State, expected: State, tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype, key
        error = float((found[key].double() - value.double()).abs().max()) if value.numel() else 0.0
        assert error <= tolerance * max(1.0, float(value.double().abs().max())), f"{key}: off by {error:.2e}"


def assert_identical(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    wrong = [key for key, value in expected.items() if not torch.equal(found[key], value)]
    assert not wrong, f"changed: {wrong}"


# ------------------------------------------------------------------------------------------ tiny federations


def tiny_data(kind: str, sizes: Iterable[int], seed: int = 0) -> Partitioned:
    """Return some random examples for each client."""
    generator = torch.Generator().manual_seed(seed)
    sizes = list(sizes)
    count = sum(sizes) + 6
    if kind == "lstm":
        inputs = torch.randint(0, 12, (count, 5), generator=generator)
        targets = torch.randint(0, 12, (count, 5), generator=generator)
    else:
        shape = {"cnn": (1, 28, 28), "batchnorm": (3, 8, 8)}.get(kind, (4,))
        inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
        classes = {"cnn": 62, "batchnorm": 4}.get(kind, 3)
        targets = torch.randint(0, classes, (count,), generator=generator)
    clients = torch.tensor([client for client, size in enumerate(sizes) for _ in range(size)])
    return partition((inputs[:-6], targets[:-6]), clients, (inputs[-6:], targets[-6:]))


class Serial:
    """An engine that trains one client after the other; answers can be changed on the way."""

    def __init__(self, federation: Federation, change: Callable[[Task, Update], Any] | None = None) -> None:
        self.trainer = Trainer(federation.model, federation.data, federation.training, federation.seed)
        self.change = change
        self.tasks: list[Task] = []
        self.updates: list[Update] = []

    def train(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        for task in tasks:
            update = self.trainer(task)
            kept = {k: v.clone() for k, v in task.tensors.items()}  # what is sent are views of the model
            self.tasks.append(replace(task, tensors=kept))
            self.updates.append(update)
            yield task, self.change(task, update) if self.change else update

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, Any]:
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
    devices: Devices | None = field(default=None, compare=False)

    def make(self) -> Federation:
        method = find_method(self.method) if isinstance(self.method, str) else self.method
        _, model = elastic(self.kind, self.space if method.nested else WidthSpace.of([self.target]), self.norms)
        data = tiny_data(self.kind, self.sizes)
        schedule = Schedule(
            self.rounds,
            len(self.sizes) if self.cohort is None else self.cohort,
            self.lr,
            milestones=self.milestones,
            availability=self.availability,
        )
        training = LocalTraining(method.objective, self.batch, self.epochs, momentum=self.momentum, prox=self.prox)
        return Federation(
            model,
            data,
            self.devices or Listed([Fraction(c) for c in self.ceilings]),
            method,
            self.space,
            self.target,
            schedule,
            training,
            self.seed,
            self.step,
            self.nova,
            ServerState(scaffold=Scaffold(model, len(self.sizes)) if self.scaffold else None),
        )

    def net(self) -> nn.Module:
        method = find_method(self.method) if isinstance(self.method, str) else self.method
        return _made(self.kind, self.space if method.nested else WidthSpace.of([self.target]), self.norms)[0]


def train(federation: Federation) -> tuple[State, Serial]:
    """Train to the last round; return the final weights and the engine."""
    engine = Serial(federation)
    for _ in federation.rounds(engine):
        pass
    return snapshot(federation.model), engine


def batches(federation: Federation, client: int, round_index: int) -> list[tuple[Tensor, Tensor]]:
    """Return the minibatches of a client, by the named generator of each epoch."""
    how, (inputs, targets) = federation.training, federation.data.examples(client)
    seed = derive(federation.seed, "client", round_index, client)
    found = []
    for epoch in range(how.epochs):
        generator = torch.Generator().manual_seed(derive(seed, "order", epoch))
        order = torch.randperm(len(inputs), generator=generator)
        found += [(inputs[rows], targets[rows]) for rows in order.split(how.batch_size)]
    return found


def sampled_widths(federation: Federation, client: int, round_index: int, ceiling: Width, steps: int) -> list[Width]:
    """Draw p ~ D_P given p <= ceiling, once for each step."""
    rng = random.Random(derive(federation.seed, "client", round_index, client, "width"))
    space = federation.space.upto(ceiling)
    return [space.sample(rng) for _ in range(steps)]


# ------------------------------------------------------------------------------- Algorithm 1, taken literally


def _loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def _kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student), mean over examples."""
    p = teacher.detach().reshape(-1, teacher.shape[-1]).softmax(-1)
    q = student.reshape(-1, student.shape[-1]).softmax(-1)
    return (p * (p.log() - q.log())).sum(-1).mean()


class LiteralClient:
    """A client's full-size copy of the weights, of which it trains one submodel after another by hand."""

    def __init__(self, net: nn.Module, model: ElasticModel, state: State, lr: float, momentum: float = 0.0) -> None:
        self.net, self.model, self.lr, self.momentum = net, copy.deepcopy(model), lr, momentum
        self.state = {key: t.clone() for key, t in state.items()}
        self.sent = {key: t.clone() for key, t in state.items()}
        self.velocity = {key: torch.zeros_like(t) for key, t in state.items() if t.is_floating_point()}
        self.moves = {key: torch.zeros_like(t) for key, t in self.velocity.items()}
        """In how many steps each weight was part of what was trained."""

    def submodel(self, width: Width) -> nn.Module:
        self.model.load_state_dict(self.state)
        return self.model.cut(width).train()

    def key(self, name: str, width: Width) -> str:
        return name if name in self.state else f"{name}@{width}"

    def place(self, key: str, width: Width) -> Tensor:
        return holds(self.net, self.model, first_units(self.model, width), [width])[key]

    def step(
        self,
        width: Width,
        batch: tuple[Tensor, Tensor],
        teacher: Width | None = None,
        *,
        prox: float = 0.0,
        correction: State | None = None,
    ) -> float:
        """One SGD step on F_p; with a teacher on F_p and F_{p_max} at once."""
        inputs, target = batch
        nets = {width: self.submodel(width)}
        if teacher is None:
            loss = _loss(nets[width](inputs), target)
        else:
            nets.setdefault(teacher, self.submodel(teacher))
            taught = nets[teacher](inputs)
            loss = _loss(taught, target)
            if width != teacher:
                loss = loss + _kl(taught, nets[width](inputs))
        loss.backward()
        gradient: State = {}
        touched: State = {}
        for w, net in nets.items():
            for name, parameter in net.named_parameters():
                key = self.key(name, w)
                where = self.place(key, w)
                gradient.setdefault(key, torch.zeros_like(self.state[key]))[where] += parameter.grad.reshape(-1)
                touched[key] = touched.get(key, torch.zeros_like(where)) | where
            for name, buffer in net.named_buffers():
                key = self.key(name, w)
                self.state[key][self.place(key, w)] = buffer.reshape(-1)
        for key, g in gradient.items():
            where = touched[key]
            self.moves[key][where] += 1
            g = g + prox * (self.state[key] - self.sent[key]) + (correction[key] if correction else 0)
            self.velocity[key][where] = self.momentum * self.velocity[key][where] + g[where]
            self.state[key][where] -= self.lr * self.velocity[key][where]
        return float(loss.detach())


def trained_literally(
    setting: Setting, federation: Federation, state: State, client: int, t: int, correction: State | None = None
) -> LiteralClient:
    """Train one client of a round from the global weights (Algorithm 1, lines 4 to 7)."""
    ceiling = Fraction(setting.ceilings[client])
    largest = max(w for w in setting.space.widths if w <= ceiling)
    mine = LiteralClient(setting.net(), federation.model, state, setting.lr, setting.momentum)
    data = batches(federation, client, t)
    for batch, width in zip(data, sampled_widths(federation, client, t, ceiling, len(data)), strict=True):
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


# --------------------------------------------------------- full width: plain torch, one function per paper


def plain_sgd(
    net: nn.Module,
    state: State,
    data: list[tuple[Tensor, Tensor]],
    lr: float,
    *,
    momentum: float = 0.0,
    prox: float = 0.0,
    correction: State | None = None,
) -> State:
    """Train a plain net: gradient, plus mu (w - w_t) (FedProx), plus c - c_i (SCAFFOLD), with heavy-ball momentum."""
    weights = {key: t.clone().requires_grad_(t.is_floating_point()) for key, t in state.items()}
    velocity = {key: torch.zeros_like(t) for key, t in state.items()}
    for inputs, target in data:
        grads = torch.autograd.grad(_loss(functional_call(net, weights, (inputs,)), target), list(weights.values()))
        for (key, w), g in zip(weights.items(), grads, strict=True):
            g = g + prox * (w.detach() - state[key]) + (correction[key] if correction else 0)
            velocity[key] = momentum * velocity[key] + g
            weights[key] = (w.detach() - lr * velocity[key]).requires_grad_()
    return {key: w.detach() for key, w in weights.items()}


def weighted_mean(states: list[State], weights: Iterable[float]) -> State:
    weights = list(weights)
    total = sum(weights)
    return {key: sum(w / total * s[key] for w, s in zip(weights, states, strict=True)) for key in states[0]}


def scattered(model: ElasticModel, net: nn.Module, held: Kept, widths: Iterable[Width], tensors: State) -> State:
    """Put a client's slice back in full-size tensors of zeros."""
    mask = holds(net, model, held, widths)
    found = {key: torch.zeros_like(model.tensors[key]).detach() for key in tensors}
    for key, value in tensors.items():
        found[key][mask[key]] = value.reshape(-1)
    return found
