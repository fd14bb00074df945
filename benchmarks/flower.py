"""FjORD over a SuperLink beside Flower's own FedAvg: the same three nodes over TLS, one run each.

Both train the paper's CNN on the same examples with the same steps, batch and step size. `benchmarks.flower_fedavg` is
what a user of Flower would write: its own strategy, training phase only, full width. This library runs twice: FedAvg
at full width, which is the same work, and FjORD over its tiers. A round is from its first message until the model is
merged; the first is warm-up and the last is not counted, as this library tests at the end. Messages are counted by the
nodes, bytes by the SuperLink, in both directions. With nothing else on the machine, about six minutes:

    python -m benchmarks.flower

It prints a table in Markdown.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fjord.engines.flower import launch
from fjord.engines.flower.fleet import LoopbackFleet, process_environment, script_path, stop_fleet
from fjord.engines.flower.submit import write_app
from fjord.experiments.runs import RunFolder

HERE = Path(__file__).parent
SIDE = 'from fjord_app.fedavg import {side} as app\n\n__all__ = ["app"]\n'
OURS = {
    "this library, FedAvg": "method=fedavg tiers=1:1",
    "this library, FjORD": "method=fjord tiers=uniform-5",
}


@dataclass(frozen=True)
class Result:
    """What one run took."""

    seconds: list[float]
    """Of each round."""
    messages: int
    traffic: int
    """Bytes in both directions."""

    @property
    def counted(self) -> list[float]:
        """The rounds that count."""
        return self.seconds[1:-1]


def fedavg(work: Path, fleet: LoopbackFleet, rounds: int) -> Result:
    """Run Flower's own FedAvg."""
    write_app(work / "fedavg")
    package = work / "fedavg" / "fjord_app"
    shutil.copyfile(HERE / "flower_fedavg.py", package / "fedavg.py")
    for side in ("server", "client"):
        (package / f"{side}.py").write_text(SIDE.format(side=side))
    out = work / "fedavg.json"
    return measured(
        work, fleet, "fedavg", f'settings="num_rounds={rounds}" output="{out}"', lambda: read(out)
    )


def read(path: Path) -> list[float]:
    return list(json.loads(path.read_text()))


def ours(work: Path, fleet: LoopbackFleet, rounds: int, settings: str) -> Result:
    """Run this library."""
    name = settings.partition(" ")[0].replace("=", "-")
    write_app(work / name, {"recipe.py": HERE / "flower_task.py"})
    out = work / f"{name}-run"
    config = f'recipe="flower_task.py" settings="num_rounds={rounds} {settings}" output="{out}"'
    return measured(
        work, fleet, name, config, lambda: [row["seconds"] for row in RunFolder(out).metrics()]
    )


def measured(
    work: Path, fleet: LoopbackFleet, app: str, config: str, seconds: Callable[[], list[float]]
) -> Result:
    """Run an app to its end, and return what it took."""
    before = received(fleet)
    env = process_environment(fleet.flwr_home)
    words = [script_path("flwr"), "run", app, "fleet", "--stream", "--run-config", config]
    done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, check=False)
    listing = [script_path("flwr"), "list", "fleet", "--format", "json"]
    listed = subprocess.run(listing, cwd=work, env=env, capture_output=True, check=True).stdout
    runs = sorted(json.loads(listed)["runs"], key=lambda run: run["pending-at"])
    if done.returncode or not runs or runs[-1]["status"] != "finished:completed":
        raise SystemExit(
            f"{shlex.join(words)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        )
    return Result(seconds(), received(fleet) - before, runs[-1]["network-traffic"]["total-bytes"])


def received(fleet: LoopbackFleet) -> int:
    """Return how many messages to train all nodes together have had."""
    logs = (fleet.folder / "logs").glob("node-*.log")
    return sum(log.read_text(errors="replace").count("Receiving: train message") for log in logs)


def table(results: dict[str, Result]) -> str:
    """Return the results in Markdown; ratios are to the first."""
    lines = [
        "| run | seconds a round (range) | ratio | messages a round | kB a message and reply | ratio |"
    ]
    lines.append("|---|---|---|---|---|---|")
    first = next(iter(results.values()))
    for name, found in results.items():
        pace, size = median(found.counted), found.traffic / found.messages
        slower, bigger = pace / median(first.counted), size / (first.traffic / first.messages)
        spread = f"{min(found.counted):.2f}-{max(found.counted):.2f}"
        each = found.messages / len(found.seconds)
        lines.append(
            f"| {name} | {pace:.2f} ({spread}) | {slower:.2f} | {each:g} | {size / 1000:.1f} | {bigger:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    from benchmarks.flower_task import CLIENTS, write

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    rounds = parser.parse_args().rounds + 2
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        os.environ["BENCHMARK_DATA"] = str(work / "data.safetensors")
        write(os.environ["BENCHMARK_DATA"])
        try:
            fleet = launch.start_fleet(work / "fleet", CLIENTS, tls=True, say=print)
            results = {"Flower, FedAvg": fedavg(work, fleet, rounds)}
            results |= {
                name: ours(work, fleet, rounds, settings) for name, settings in OURS.items()
            }
        finally:
            stop_fleet(work / "fleet")
    print(table(results))


if __name__ == "__main__":
    main()
