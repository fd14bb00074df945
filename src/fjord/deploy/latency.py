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

NetworkKey = TypeVar("NetworkKey")
TimeSource = Callable[[], float]
RequestInputs = Tensor | tuple[Any, ...]
"""The inputs of one call."""
TIMING_ROUNDS = 20
LEAST_ROUNDS = 3
TIMING_SECONDS = 2.0
"""Timing ends after this long even if rounds are left: wide networks are slow."""


@dataclass(frozen=True)
class WidthLatency:
    """The time of one request at one width, in seconds, and its multiply-accumulates."""

    width: Width
    seconds: float
    """The best of all runs: the time of a request when nothing else runs."""
    median: float
    macs: int


def measure_latencies(
    model: ElasticModel, inputs: RequestInputs, widths: Iterable[WidthLike] | None = None
) -> list[WidthLatency]:
    """Time a request with these inputs at each width (default: all of the model's).

    The networks that are timed are plain cut submodels.
    """
    if widths is None:
        selected = model.space.widths
    else:
        selected = tuple(parse_width(width) for width in widths)
    arguments = as_request(inputs)
    submodels = {width: uncalibrated_submodel(model, width) for width in selected}
    times = time_networks(submodels, arguments)
    rows = []
    for width in selected:
        runs = times[width]
        macs = submodel_macs(model, width, arguments)
        rows.append(WidthLatency(width, min(runs), median(runs), macs))
    return rows


def as_request(inputs: RequestInputs) -> tuple[Any, ...]:
    """Return the arguments of a call: a tensor stands for a single argument.

    >>> len(as_request(torch.zeros(2, 3)))
    1
    """
    if isinstance(inputs, Tensor):
        return (inputs,)
    return tuple(inputs)


def first_example(inputs: Iterable[Any]) -> tuple[Any, ...]:
    """Return the inputs with a batch of one.

    >>> first_example([torch.zeros(4, 3)])[0].shape
    torch.Size([1, 3])
    """

    def keep_first(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim():
            return value[:1]
        return value

    return tuple(pytree.tree_map(keep_first, tuple(inputs)))


@torch.inference_mode()
def time_networks(
    nets: Mapping[NetworkKey, nn.Module],
    inputs: tuple[Any, ...],
    *,
    rounds: int = TIMING_ROUNDS,
    seconds: float = TIMING_SECONDS,
    clock: TimeSource = time.perf_counter,
) -> dict[NetworkKey, list[float]]:
    """Return the times of several runs of each network.

    The networks take turns, so that a slow moment of the machine affects all of them.
    """
    times: dict[NetworkKey, list[float]] = {}
    for key, net in nets.items():
        net(*inputs)  # the first call allocates and chooses kernels
        times[key] = []
    begun = clock()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and clock() - begun > seconds:
            break
        for key, net in nets.items():
            start = clock()
            net(*inputs)
            times[key].append(clock() - start)
    return times
