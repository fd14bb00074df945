"""Compare this library with Flower's simulation on Ray, and with pfl.

FedAvg on the same task for all (`benchmarks.simulator_task`): same model, clients' tensors, cohort
size, local steps, batch and step size; full width, because the others support no other. No tool
evaluates while it is timed; every process computes with one thread. A tool runs in a process of its
own for each seed. *Set-up* is from the start of that process to the end of its first round, the
warm-up; *a round* is the mean of those that follow.

The tools need an environment of their own. Once, in the root of the repository:

    python3.11 -m venv .venv-simulators
    .venv-simulators/bin/python -m pip install --requirement benchmarks/simulators_requirements.txt

Then, on an otherwise idle machine (about nine minutes):

    .venv/bin/python -m benchmarks.simulators --python .venv-simulators/bin/python

This library is imported from `src`, with the packages of that same environment. The command prints
a table in Markdown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).parent.parent
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
TOOLS = {
    "fjord, 1 worker": (("benchmarks.simulator_fjord",), 1),
    "fjord, 2 workers": (("benchmarks.simulator_fjord",), 2),
    "pfl, 1 process": (("benchmarks.simulator_pfl",), 1),
    "pfl, 2 processes (torchrun)": ((*TORCHRUN, "benchmarks.simulator_pfl"), 2),
    "Flower, Ray, 2 actors": (("benchmarks.simulator_flower",), 2),
}
QUIET = {
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}


def command(python: str, tool: str, rounds: int, seed: int) -> list[str]:
    module, workers = TOOLS[tool]
    asked = {"--rounds": rounds, "--seed": seed, "--workers": workers}
    return [python, "-m", *module, *(str(part) for pair in asked.items() for part in pair)]


def measure(line: list[str], data: str) -> dict[str, Any]:
    """Run one tool on one seed; its last line is its result."""
    started = time.time()
    done = subprocess.run(
        [*line, "--data", data, "--started", str(started)],
        cwd=ROOT,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    found = [text for text in done.stdout.splitlines() if text.startswith('{"seconds_setup"')]
    if done.returncode or not found:
        sys.exit(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(found[-1]) | {"seconds_in_all": time.time() - started}


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the results in Markdown; the last column divides by ours with as many processes."""
    ours = {
        workers: _mean(results, tool, "seconds_per_round")
        for tool, (_, workers) in TOOLS.items()
        if "fjord" in tool
    }
    lines = [
        "| tool | set-up, s | a round, s | in all, s | accuracy | a round / ours |",
        "|---|---|---|---|---|---|",
    ]
    for tool, runs in results.items():
        scores = [run["accuracy"] for run in runs]
        spread = f" ± {stdev(scores):.1%}" if len(scores) > 1 else ""
        a_round = _mean(results, tool, "seconds_per_round")
        ratio = a_round / ours[TOOLS[tool][1]] if TOOLS[tool][1] in ours else float("nan")
        times = (f"{_mean(results, tool, key):.1f}" for key in ("seconds_setup", "seconds_in_all"))
        setup, in_all = times
        lines.append(
            f"| {tool} | {setup} | {a_round:.3f} | {in_all} "
            f"| {mean(scores):.1%}{spread} | {ratio:.2f} |"
        )
    return "\n".join(lines)


def _mean(results: dict[str, list[dict[str, Any]]], tool: str, key: str) -> float:
    if tool not in results:
        return float("nan")
    return mean(run[key] for run in results[tool])


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare simulators of federated learning.")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter of the simulators' environment"
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    asked = parser.parse_args()
    python = asked.python if os.path.isabs(asked.python) else os.path.abspath(asked.python)
    results: dict[str, list[dict[str, Any]]] = {tool: [] for tool in asked.tools}
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "clients.safetensors")
        code = "import sys; from benchmarks.simulator_task import write; write(sys.argv[1])"
        subprocess.run([python, "-c", code, data], cwd=ROOT, env=os.environ | QUIET, check=True)
        for seed in range(asked.seeds):  # the tools take turns, so that a slow moment hits all
            for tool, runs in results.items():
                runs.append(measure(command(python, tool, asked.rounds, seed), data))
                print(f"{tool}, seed {seed}: {runs[-1]}", file=sys.stderr)
    print(f"{asked.rounds} rounds after one of warm-up, {asked.seeds} seeds\n\n{table(results)}\n")
    versions = {
        name: value for runs in results.values() for name, value in runs[0]["versions"].items()
    }
    print("Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "\n")
    for tool in results:
        print(f"- {tool}: `{' '.join(command('python', tool, asked.rounds, 0))} --data FILE`")


if __name__ == "__main__":
    main()
