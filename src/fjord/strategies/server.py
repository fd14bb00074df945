"""Server optimizers (Reddi et al., Adaptive Federated Optimization; Hsu et al., FedAvgM) on nested means.

The pseudo-gradient is the mean update. Weights that no client held this round stay, and so does their memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel
from fjord.merge import Covered, NestedMean, settle

Memory = dict[str, Tensor]
"""What a server remembers from round to round, by a name and a tensor's key; kept in checkpoints."""
Step = Callable[[Memory, str, Tensor], Tensor]
"""Maps (memory, key, mean update) to the step the server takes; changes the memory."""


@dataclass(frozen=True)
class FedAvgM:
    """Momentum at the server: m = momentum * m + update; w += lr * m."""

    lr: float = 1.0
    momentum: float = 0.9

    def __call__(self, memory: Memory, key: str, update: Tensor) -> Tensor:
        """Return the step for one tensor."""
        momentum = memory[f"momentum/{key}"] = self.momentum * memory.get(f"momentum/{key}", 0) + update
        return self.lr * momentum


@dataclass(frozen=True)
class FedAdam:
    """Adam at the server, as in the paper's Algorithm 2: without bias correction."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __call__(self, memory: Memory, key: str, update: Tensor) -> Tensor:
        """Return the step for one tensor."""
        first = memory[f"first/{key}"] = self.beta1 * memory.get(f"first/{key}", 0) + (1 - self.beta1) * update
        second = self.beta2 * memory.get(f"second/{key}", 0) + (1 - self.beta2) * update.square()
        memory[f"second/{key}"] = second
        return self.lr * first / (second.sqrt() + self.tau)


@torch.no_grad()
def apply(model: ElasticModel, merged: NestedMean, step: Step | None, memory: Memory) -> None:
    """Bring a round's mean into the model: as it is (FedAvg), or through a server optimizer."""
    for key, current in model.tensors.items():
        found = merged.result(key)
        if step is not None and isinstance(current, nn.Parameter):
            found = _stepped(key, current, found, step, memory)
        settle(current, found)


def _stepped(key: str, current: Tensor, found: Covered, step: Step, memory: Memory) -> Covered:
    before = {name: memory[name] for name in memory if name.endswith(f"/{key}")}
    moved = current + step(memory, key, found.mean - current)
    for name in [name for name in memory if name.endswith(f"/{key}")]:
        old = before.get(name, torch.zeros_like(current))
        memory[name] = torch.where(found.weight > 0, memory[name], old)
    return Covered(moved, found.weight)
