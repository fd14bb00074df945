"""Server optimizers on nested means: FedAvgM (Hsu et al., 2019) and FedAdam (Reddi et al., 2021).

The pseudo-gradient is the mean update. Weights that no client held this round stay, and so does
their memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel
from fjord.federated.aggregation import Aggregator, CoveredMean, write_where_covered

OptimizerMemory = dict[str, Tensor]
"""What a server optimizer remembers of one tensor, by name."""


class ServerOptimizer(Protocol):
    """How a server moves a tensor."""

    def start(self) -> dict[str, float]:
        """Return what is remembered of each weight, and the value it begins with."""

    def __call__(self, memory: OptimizerMemory, update: Tensor) -> Tensor:
        """Return the step for one tensor from the mean update; change what is remembered of it."""


@dataclass(frozen=True)
class FedAvgM:
    """Momentum at the server: m = momentum * m + update; w += lr * m."""

    lr: float = 1.0
    momentum: float = 0.9

    def start(self) -> dict[str, float]:
        """Begin at rest."""
        return {"momentum": 0.0}

    def __call__(self, memory: OptimizerMemory, update: Tensor) -> Tensor:
        """Return the step for one tensor."""
        memory["momentum"] = self.momentum * memory["momentum"] + update
        return self.lr * memory["momentum"]


@dataclass(frozen=True)
class FedAdam:
    """Adam at the server (Reddi et al., Algorithm 2): no bias correction, v begins at tau^2."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def start(self) -> dict[str, float]:
        """Begin as the paper does."""
        return {"first": 0.0, "second": self.tau**2}

    def __call__(self, memory: OptimizerMemory, update: Tensor) -> Tensor:
        """Return the step for one tensor."""
        memory["first"] = self.beta1 * memory["first"] + (1 - self.beta1) * update
        memory["second"] = self.beta2 * memory["second"] + (1 - self.beta2) * update.square()
        return self.lr * memory["first"] / (memory["second"].sqrt() + self.tau)


class ServerUpdate:
    """Brings a round's mean into the model: as it is (FedAvg), or through a server optimizer."""

    def __init__(self, optimizer: ServerOptimizer | None = None) -> None:
        self.optimizer = optimizer
        self.memory: dict[str, Tensor] = {}
        """What the optimizer remembers, by `name/key` of a tensor."""

    @torch.no_grad()
    def apply(self, model: ElasticModel, aggregator: Aggregator) -> None:
        """Move the model to a round's result."""
        for key, current in model.tensors.items():
            if self.optimizer is not None and isinstance(current, nn.Parameter):
                moved = self._step(self.optimizer, key, current, aggregator.result(key))
                write_where_covered(current, moved)
            else:
                aggregator.write(key, current)

    def _step(
        self, optimizer: ServerOptimizer, key: str, current: Tensor, result: CoveredMean
    ) -> CoveredMean:
        before: OptimizerMemory = {}
        for name, initial in optimizer.start().items():
            remembered = self.memory.get(f"{name}/{key}")
            before[name] = torch.full_like(current, initial) if remembered is None else remembered
        after = dict(before)
        moved = current + optimizer(after, result.mean - current)
        for name, value in after.items():
            self.memory[f"{name}/{key}"] = torch.where(result.weight > 0, value, before[name])
        return CoveredMean(moved, result.weight)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is remembered from round to round."""
        return {f"memory/{key}": tensor for key, tensor in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what was remembered."""
        self.memory = {}
        for key, tensor in state.items():
            if key.startswith("memory/"):
                self.memory[key.removeprefix("memory/")] = tensor
