"""Serves requests at the width that keeps to a latency target while the load changes."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fjord.core.width import Width, WidthLike, parse_width
from fjord.deploy.latency import RequestInputs, TimeSource, as_request, time_networks
from fjord.deploy.policy import WidthPolicy
from fjord.elastic.model import ElasticModel


@dataclass(frozen=True)
class ServedRequests:
    """What a controller has done so far."""

    requests: int
    within: float
    """The share of requests that kept to the target."""
    widths: Mapping[Width, int]
    """Requests at each width."""

    @property
    def mean_width(self) -> float:
        """The width of the average request; not a number before the first."""
        total = sum(width * count for width, count in self.widths.items())
        return float(total / self.requests) if self.requests else math.nan


class WidthController:
    """Answers requests at the largest width that keeps to a latency target, in `quantile` of the requests.

    `inputs` is one request as it will come: each width is timed on it first, and the model is put in evaluation mode.
    All submodels lie on the model's own weights, so that a change of width loads and copies nothing. May be called
    from several threads.
    """

    def __init__(
        self,
        model: ElasticModel,
        inputs: RequestInputs,
        *,
        target: float,
        quantile: float = 0.95,
        margin: float = 0.1,
        widths: Iterable[WidthLike] | None = None,
        clock: TimeSource = time.perf_counter,
    ) -> None:
        chosen = model.space.widths if widths is None else sorted({parse_width(w) for w in widths})
        model.eval()
        self.nets = {width: model.at(width) for width in chosen}
        times = time_networks(self.nets, as_request(inputs), clock=clock)
        self.policy = WidthPolicy(
            {width: min(runs) for width, runs in times.items()}, target, quantile, margin
        )
        self.state = self.policy.start()
        self._clock, self._lock = clock, threading.Lock()
        self._within, self._widths = 0, Counter[Width]()

    @property
    def width(self) -> Width:
        """The width that the next request gets."""
        return self.state.width

    def __call__(self, *inputs: Any) -> Any:
        """Answer one request, and take its time into account."""
        width = self.state.width
        start = self._clock()
        with torch.inference_mode():
            answer = self.nets[width](*inputs)
        self._observe(width, self._clock() - start)
        return answer

    def _observe(self, width: Width, seconds: float) -> None:
        with self._lock:
            self._widths[width] += 1
            self._within += seconds <= self.policy.target
            if (
                width == self.state.width
            ):  # else another thread has changed it meanwhile, and this is old news
                self.state = self.policy.after(self.state, seconds)

    @property
    def served(self) -> ServedRequests:
        """What was done so far."""
        with self._lock:
            total = self._widths.total()
            return ServedRequests(total, self._within / total if total else 1.0, dict(self._widths))
