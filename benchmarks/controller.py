"""Whether a controller holds its latency target under changing load.

`python -m benchmarks.controller`: ResNet18 on single 32x32 images, one thread. The target is 1.3
times the time of full width when nothing else runs. In phases, 0 to 4 processes that do nothing but
compute run beside it. Three servers answer requests in turn, so that all meet the same load: the
controller, full width, and the smallest width. Run it on a machine with nothing else to do.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fjord
from fjord.deploy.latency import time_networks
from fjord.models.catalog import find_model

PHASES = (0, 2, 0, 4, 1, 2, 0, 2)
"""How many processes compute beside the servers."""
PAUSE = 0.01
SLACK = 1.3
SERVERS = ("controller", "full", "smallest")
COLUMNS = (
    "processes beside it",
    "requests each",
    "controller",
    "mean width",
    "changes",
    "full width",
    "smallest",
)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep some processes computing, and end them."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass
class RequestLog:
    """The requests of one server in one phase."""

    seconds: list[float] = field(default_factory=list)
    widths: list[Fraction] = field(default_factory=list)

    def add(self, other: "RequestLog") -> None:
        """Append the requests of another log."""
        self.seconds += other.seconds
        self.widths += other.widths

    def share_within(self, target: float) -> str:
        """Return the share of requests that kept to the target."""
        within = sum(seconds <= target for seconds in self.seconds)
        return f"{within / len(self.seconds):.1%}"


PhaseLogs = dict[str, RequestLog]
"""The log of each server."""


def empty_logs() -> PhaseLogs:
    return {name: RequestLog() for name in SERVERS}


def time_request(request: Callable[[], object]) -> float:
    time.sleep(PAUSE)
    start = time.perf_counter()
    request()
    return time.perf_counter() - start


def run_phase(controller: fjord.WidthController, image: Tensor, length: float) -> PhaseLogs:
    """Let the three servers answer in turn for some seconds."""
    logs = empty_logs()
    end = time.perf_counter() + length
    while time.perf_counter() < end:
        for name, log in logs.items():
            width, serve = find_server(name, controller)
            log.widths.append(width)
            log.seconds.append(time_request(partial(serve, image)))
    return logs


def find_server(
    name: str, controller: fjord.WidthController
) -> tuple[Fraction, Callable[..., object]]:
    """Return the width of a server's next request, and what serves it."""
    if name == "controller":
        return controller.width, controller
    width = max(controller.nets)
    if name == "smallest":
        width = min(controller.nets)
    return width, controller.nets[width]


def join_logs(phases: list[PhaseLogs]) -> PhaseLogs:
    joined = empty_logs()
    for logs in phases:
        for name, log in logs.items():
            joined[name].add(log)
    return joined


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=float, default=15.0, help="seconds of a phase")
    parser.add_argument(
        "--target", type=float, help="seconds (default: 1.3 x full width when nothing else runs)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    entry = find_model("resnet18")
    model = fjord.elasticize(entry.model, entry.inputs).eval()
    image = entry.inputs[0][:1]
    times = time_networks({"full": model.at(1)}, (image,))
    target = arguments.target or SLACK * min(times["full"])
    controller = fjord.WidthController(model, image, target=target)
    phases = []
    for count in PHASES:
        with busy_processes(count):
            phases.append(run_phase(controller, image, arguments.length))
    print_phases(phases, controller)


def print_phases(phases: list[PhaseLogs], controller: fjord.WidthController) -> None:
    console = Console(width=110, highlight=False)
    target = controller.policy.target
    idle = []
    for width, seconds in controller.policy.idle.items():
        idle.append(f"{width}: {seconds * 1e3:.1f}")
    console.print(f"target {target * 1e3:.1f} ms; nothing else running, ms: {', '.join(idle)}")
    table = Table(*COLUMNS)
    for count, logs in zip(PHASES, phases, strict=True):
        table.add_row(str(count), *phase_cells(logs, target))
    table.add_row("all", *phase_cells(join_logs(phases), target))
    console.print(table)


def phase_cells(logs: PhaseLogs, target: float) -> list[str]:
    widths = logs["controller"].widths
    changes = sum(before != after for before, after in pairwise(widths))
    mean_width = float(sum(widths) / len(widths))
    return [
        str(len(widths)),
        logs["controller"].share_within(target),
        f"{mean_width:.2f}",
        str(changes),
        logs["full"].share_within(target),
        logs["smallest"].share_within(target),
    ]


if __name__ == "__main__":
    main()
