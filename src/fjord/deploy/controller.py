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
    """The requests that a controller has served so far."""

    requests: int
    within: float
    """The share of requests that kept to the target."""
    widths: Mapping[Width, int]
    """Requests at each width."""

    @property
    def mean_width(self) -> float:
        """The mean width of all requests; NaN before the first."""
        if not self.requests:
            return math.nan
        total = sum(width * count for width, count in self.widths.items())
        return float(total / self.requests)


class WidthController:
    """Serves each request at the largest width that keeps `quantile` of them within a target.

    `inputs` is one request as it will come: each width is timed on it first. The model is put in
    evaluation mode. All submodels share the model's own weights, so that a change of width loads
    and copies nothing. A controller may be called from several threads.
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
        selected = _rising_widths(model, widths)
        model.eval()
        self.nets = {width: model.at(width) for width in selected}
        times = time_networks(self.nets, as_request(inputs), clock=clock)
        idle = {width: min(runs) for width, runs in times.items()}
        self.policy = WidthPolicy(idle, target, quantile, margin)
        self.state = self.policy.start()
        self._clock = clock
        self._lock = threading.Lock()
        self._within = 0
        self._widths = Counter[Width]()

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
        self._record_time(width, self._clock() - start)
        return answer

    def _record_time(self, width: Width, seconds: float) -> None:
        with self._lock:
            self._widths[width] += 1
            self._within += seconds <= self.policy.target
            # Otherwise another thread has changed the width meanwhile: this time is out of date.
            if width == self.state.width:
                self.state = self.policy.after(self.state, seconds)

    @property
    def served(self) -> ServedRequests:
        """The requests so far."""
        with self._lock:
            total = self._widths.total()
            within = 1.0
            if total:
                within = self._within / total
            return ServedRequests(total, within, dict(self._widths))


def _rising_widths(model: ElasticModel, widths: Iterable[WidthLike] | None) -> Iterable[Width]:
    if widths is None:
        return model.space.widths
    return sorted({parse_width(width) for width in widths})
