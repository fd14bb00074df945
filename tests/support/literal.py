"""The training of one client by hand: nested, and at full width in plain torch."""

import copy
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from holders import State, first_units, holds
from torch import Tensor, nn
from torch.func import functional_call

from fjord.core.width import Width
from fjord.elastic.model import ElasticModel


def _loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def _kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student), mean over examples."""
    p = teacher.detach().reshape(-1, teacher.shape[-1]).softmax(-1)
    q = student.reshape(-1, student.shape[-1]).softmax(-1)
    return (p * (p.log() - q.log())).sum(-1).mean()


class LiteralClient:
    """A client's full-size copy of the weights, whose submodels are trained by hand."""

    def __init__(
        self, net: nn.Module, model: ElasticModel, state: State, lr: float, momentum: float = 0.0
    ) -> None:
        self.net = net
        self.model = copy.deepcopy(model)
        self.lr = lr
        self.momentum = momentum
        self.state = {key: t.clone() for key, t in state.items()}
        self.sent = {key: t.clone() for key, t in state.items()}
        self.velocity = {
            key: torch.zeros_like(t) for key, t in state.items() if t.is_floating_point()
        }
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
                gradient.setdefault(key, torch.zeros_like(self.state[key]))[where] += (
                    parameter.grad.reshape(-1)
                )
                touched[key] = touched.get(key, torch.zeros_like(where)) | where
            for name, buffer in net.named_buffers():
                key = self.key(name, w)
                self.state[key][self.place(key, w)] = buffer.reshape(-1)
        for key, g in gradient.items():
            where = touched[key]
            self.moves[key][where] += 1
            g = (
                g
                + prox * (self.state[key] - self.sent[key])
                + (correction[key] if correction else 0)
            )
            self.velocity[key][where] = self.momentum * self.velocity[key][where] + g[where]
            self.state[key][where] -= self.lr * self.velocity[key][where]
        return float(loss.detach())


# -------------------------------------------------- full width: plain torch, one function per paper


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
    """Train a plain net: gradient, plus mu (w - w_t) (FedProx), plus c - c_i (SCAFFOLD).

    The momentum is the heavy-ball one.
    """
    weights = {key: t.clone().requires_grad_(t.is_floating_point()) for key, t in state.items()}
    velocity = {key: torch.zeros_like(t) for key, t in state.items()}
    for inputs, target in data:
        grads = torch.autograd.grad(
            _loss(functional_call(net, weights, (inputs,)), target), list(weights.values())
        )
        for (key, w), g in zip(weights.items(), grads, strict=True):
            g = g + prox * (w.detach() - state[key]) + (correction[key] if correction else 0)
            velocity[key] = momentum * velocity[key] + g
            weights[key] = (w.detach() - lr * velocity[key]).requires_grad_()
    return {key: w.detach() for key, w in weights.items()}


def weighted_mean(states: list[State], weights: Iterable[float]) -> State:
    weights = list(weights)
    total = sum(weights)
    return {
        key: sum(w / total * s[key] for w, s in zip(weights, states, strict=True))
        for key in states[0]
    }
