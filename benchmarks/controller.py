"""Whether a controller holds its latency target while load comes and goes: `python -m benchmarks.controller`.

ResNet18 on single 32x32 images, one thread. The target is 1.3 times the time of full width when nothing else runs. In
phases, 0 to 4 processes that do nothing but compute run beside it. Three servers answer requests in turn, so that all
meet the same load: the controller, full width, and the smallest width. Run it on a machine with nothing else to do.
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
PAUSE = 0.01
SLACK = 1.3


@contextmanager
def burning(count: int) -> Iterator[None]:
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
class Log:
    """The requests of one server in one phase."""

    seconds: list[float] = field(default_factory=list)
    widths: list[Fraction] = field(default_factory=list)

    def within(self, target: float) -> float:
        """Return the share of requests that kept to the target."""
        return sum(s <= target for s in self.seconds) / len(self.seconds)


def timed(request: Callable[[], object]) -> float:
    time.sleep(PAUSE)
    start = time.perf_counter()
    request()
    return time.perf_counter() - start


def phase(controller: fjord.WidthController, image: Tensor, length: float) -> dict[str, Log]:
    """Let the three servers answer in turn for some seconds."""
    logs = {name: Log() for name in ("controller", "full", "smallest")}
    nets = controller.nets
    end = time.perf_counter() + length
    while time.perf_counter() < end:
        for name, log in logs.items():
            width = {"controller": controller.width, "full": max(nets), "smallest": min(nets)}[name]
            serve = controller if name == "controller" else nets[width]
            log.widths.append(width)
            log.seconds.append(timed(partial(serve, image)))
    return logs


def joined(rows: list[dict[str, Log]], name: str) -> Log:
    seconds = [s for row in rows for s in row[name].seconds]
    return Log(seconds, [w for row in rows for w in row[name].widths])


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
    full = min(time_networks({1: model.at(1)}, (image,))[1])
    target = arguments.target or SLACK * full
    controller = fjord.WidthController(model, image, target=target)
    rows = []
    for count in PHASES:
        with burning(count):
            rows.append(phase(controller, image, arguments.length))
    show(rows, controller)


def show(rows: list[dict[str, Log]], controller: fjord.WidthController) -> None:
    out, target = Console(width=110, highlight=False), controller.policy.target
    idle = ", ".join(f"{w}: {s * 1e3:.1f}" for w, s in controller.policy.idle.items())
    out.print(f"target {target * 1e3:.1f} ms; nothing else running, ms: {idle}")
    table = Table(
        "processes beside it",
        "requests each",
        "controller",
        "mean width",
        "changes",
        "full width",
        "smallest",
    )
    for count, row in [
        *zip(PHASES, rows, strict=True),
        ("all", {n: joined(rows, n) for n in rows[0]}),
    ]:
        widths = row["controller"].widths
        changes = sum(a != b for a, b in pairwise(widths))
        shares = {name: f"{log.within(target):.1%}" for name, log in row.items()}
        mean = float(sum(widths) / len(widths))
        beside = (
            shares["controller"],
            f"{mean:.2f}",
            str(changes),
            shares["full"],
            shares["smallest"],
        )
        table.add_row(str(count), str(len(widths)), *beside)
    out.print(table)


if __name__ == "__main__":
    main()
