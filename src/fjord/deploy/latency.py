"""How long a request takes at each width."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fjord.core.width import Width, WidthLike, parse_width
from fjord.elastic.footprint import submodel_macs
from fjord.elastic.model import ElasticModel
from fjord.elastic.recalibrate import uncalibrated_submodel

Key = TypeVar("Key")
TimeSource = Callable[[], float]
RequestInputs = Tensor | tuple[Any, ...]
"""The inputs of one call."""
ROUNDS = 20
SECONDS = 2.0
"""How long measuring goes on where that comes first: wide networks are slow."""


@dataclass(frozen=True)
class WidthLatency:
    """The time of one request at one width, in seconds, and its multiply-accumulates."""

    width: Width
    seconds: float
    """The best of all runs: what the width needs when nothing else runs."""
    median: float
    macs: int


def measure_latencies(
    model: ElasticModel, inputs: RequestInputs, widths: Iterable[WidthLike] | None = None
) -> list[WidthLatency]:
    """Measure requests of these inputs at each width (by default all of the model's), on plain cut submodels."""
    chosen = model.space.widths if widths is None else tuple(parse_width(w) for w in widths)
    given = as_request(inputs)
    times = time_networks({width: uncalibrated_submodel(model, width) for width in chosen}, given)
    return [
        WidthLatency(w, min(times[w]), median(times[w]), submodel_macs(model, w, given))
        for w in chosen
    ]


def as_request(inputs: RequestInputs) -> tuple[Any, ...]:
    """Return the arguments of a call: a tensor stands for a single one."""
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)


def first_example(inputs: Iterable[Any]) -> tuple[Any, ...]:
    """Return inputs with a batch of one."""
    return tuple(
        pytree.tree_map(lambda v: v[:1] if isinstance(v, Tensor) and v.dim() else v, tuple(inputs))
    )


@torch.inference_mode()
def time_networks(
    nets: Mapping[Key, nn.Module],
    inputs: tuple[Any, ...],
    *,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    clock: TimeSource = time.perf_counter,
) -> dict[Key, list[float]]:
    """Return the times of some runs of each network; they take turns, so that a slow moment hits all."""
    for net in nets.values():
        net(*inputs)  # the first call allocates and chooses kernels
    times: dict[Key, list[float]] = {key: [] for key in nets}
    begun = clock()
    for done in range(rounds):
        if done >= 3 and clock() - begun > seconds:
            break
        for key, net in nets.items():
            start = clock()
            net(*inputs)
            times[key].append(clock() - start)
    return times
