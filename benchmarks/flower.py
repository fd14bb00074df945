"""FjORD over a SuperLink beside Flower's own FedAvg: the same three nodes over TLS, one run each.

Both train the paper's CNN on the same examples with the same steps, batch and step size.
`benchmarks.flower_fedavg` is what a user of Flower would write: its own strategy, training phase
only, full width. This library runs twice: FedAvg at full width, which is the same work, and FjORD
over its tiers. A round is from its first message until the model is merged; the first is warm-up,
and the last is not counted, as this library tests at the end. Messages are counted by the nodes,
bytes by the SuperLink, in both directions. With nothing else on the machine, about six minutes:

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
from typing import Any

from benchmarks.flower_task import CLIENTS, write_examples
from fjord.cli.fleet import node_configs
from fjord.engines.flower.loopback import LoopbackFleet, start_fleet, stop_fleet
from fjord.engines.flower.programs import process_environment, script_path
from fjord.engines.flower.submit import write_app
from fjord.experiments.runs import RunFolder

HERE = Path(__file__).parent
APP_MODULE = 'from fjord_app.fedavg import {side} as app\n\n__all__ = ["app"]\n'
OUR_SETTINGS = {
    "this library, FedAvg": "method=fedavg tiers=1:1",
    "this library, FjORD": "method=fjord tiers=uniform-5",
}
HEADINGS = (
    "run",
    "seconds a round (range)",
    "ratio",
    "messages a round",
    "kB a message and reply",
    "ratio",
)


@dataclass(frozen=True)
class RunCost:
    """What one run took."""

    round_seconds: list[float]
    messages: int
    traffic_bytes: int
    """In both directions."""

    @property
    def counted_seconds(self) -> list[float]:
        """The rounds that count."""
        return self.round_seconds[1:-1]

    @property
    def median_seconds(self) -> float:
        """A typical round."""
        return median(self.counted_seconds)

    @property
    def message_bytes(self) -> float:
        """A message and its reply."""
        return self.traffic_bytes / self.messages


def run_fedavg(work: Path, fleet: LoopbackFleet, rounds: int) -> RunCost:
    """Run Flower's own FedAvg."""
    write_app(work / "fedavg")
    package = work / "fedavg" / "fjord_app"
    shutil.copyfile(HERE / "flower_fedavg.py", package / "fedavg.py")
    for side in ("server", "client"):
        (package / f"{side}.py").write_text(APP_MODULE.format(side=side))
    output = work / "fedavg.json"
    config = f'settings="num_rounds={rounds}" output="{output}"'
    return run_app(
        work,
        fleet,
        "fedavg",
        config,
        lambda: json.loads(output.read_text()),
    )


def run_ours(
    work: Path,
    fleet: LoopbackFleet,
    rounds: int,
    settings: str,
) -> RunCost:
    """Run this library."""
    name = settings.partition(" ")[0].replace("=", "-")
    write_app(work / name, {"recipe.py": HERE / "flower_task.py"})
    output = work / f"{name}-run"
    config = f'recipe="flower_task.py" settings="num_rounds={rounds} {settings}" output="{output}"'
    return run_app(work, fleet, name, config, lambda: folder_seconds(output))


def folder_seconds(folder: Path) -> list[float]:
    return [row["seconds"] for row in RunFolder(folder).metrics()]


def run_app(
    work: Path,
    fleet: LoopbackFleet,
    app: str,
    config: str,
    read_seconds: Callable[[], list[float]],
) -> RunCost:
    """Run an app to its end, and return what it took."""
    messages_before = count_messages(fleet)
    env = process_environment(fleet.flwr_home)
    words = [script_path("flwr"), "run", app, "fleet", "--stream", "--run-config", config]
    done = subprocess.run(
        words,
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
    )
    run = last_run(work, env)
    if done.returncode or run.get("status") != "finished:completed":
        output = f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        raise SystemExit(f"{shlex.join(words)} failed:\n{output}")
    messages = count_messages(fleet) - messages_before
    return RunCost(read_seconds(), messages, run["network-traffic"]["total-bytes"])


def last_run(work: Path, env: dict[str, str]) -> dict[str, Any]:
    """Return what the SuperLink says of its last run."""
    words = [script_path("flwr"), "list", "fleet", "--format", "json"]
    done = subprocess.run(
        words,
        cwd=work,
        env=env,
        capture_output=True,
        check=True,
    )
    runs = json.loads(done.stdout)["runs"]
    return max(runs, key=lambda run: run["pending-at"], default={})


def count_messages(fleet: LoopbackFleet) -> int:
    """Return how many messages to train all nodes together have had."""
    count = 0
    for log in (fleet.folder / "logs").glob("node-*.log"):
        count += log.read_text(errors="replace").count("Receiving: train message")
    return count


def results_table(results: dict[str, RunCost]) -> str:
    """Return the results in Markdown; ratios are to the first."""
    rows = [HEADINGS, ("---",) * len(HEADINGS)]
    first = next(iter(results.values()))
    for name, cost in results.items():
        seconds = cost.counted_seconds
        row = (
            name,
            f"{cost.median_seconds:.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
            f"{cost.median_seconds / first.median_seconds:.2f}",
            f"{cost.messages / len(cost.round_seconds):g}",
            f"{cost.message_bytes / 1000:.1f}",
            f"{cost.message_bytes / first.message_bytes:.2f}",
        )
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds that are counted",
    )
    rounds = parser.parse_args().rounds + 2
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        data = str(work / "data.safetensors")
        os.environ["BENCHMARK_DATA"] = data
        write_examples(data)
        configs = node_configs(CLIENTS)
        try:
            fleet = start_fleet(
                work / "fleet",
                configs,
                tls=True,
                on_progress=print,
            )
            results = {"Flower, FedAvg": run_fedavg(work, fleet, rounds)}
            for name, settings in OUR_SETTINGS.items():
                results[name] = run_ours(work, fleet, rounds, settings)
        finally:
            stop_fleet(work / "fleet")
    print(results_table(results))


if __name__ == "__main__":
    main()
