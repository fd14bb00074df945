"""The task of every simulator of `benchmarks.simulators`: the clients' tensors, and the numbers.

FedAvg on the paper's CNN: 100 clients of 192 examples (12 full batches of 16, so that no tool can
differ in the last one), 10 clients a round, one local epoch of plain SGD. All tools read the same
file, before anything is timed.
"""

import argparse
import json
import platform
import sys
import time
from functools import lru_cache
from importlib.metadata import version

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CLIENTS, COHORT, EXAMPLES, BATCH, LR = 100, 10, 192, 16, 0.1


def write(path: str) -> None:
    """Write the examples of all clients, and the test set."""
    from fjord.data.writers import writers

    data = writers(0, CLIENTS, examples=EXAMPLES)
    drawn = [data.examples(client) for client in range(CLIENTS)]
    inputs, targets = (torch.stack(tensors) for tensors in zip(*drawn, strict=True))
    test = data.test
    save_file(
        {
            "inputs": inputs,
            "targets": targets,
            "test_inputs": test.inputs,
            "test_targets": test.targets,
        },
        path,
    )


@lru_cache(maxsize=1)
def read(path: str) -> dict[str, Tensor]:
    """Return `inputs` and `targets`, whose first axis is the client, and the test set; cached."""
    return load_file(path)


def accuracy(net: nn.Module, path: str) -> float:
    """Return the share of the test set that the model gets right."""
    data = read(path)
    with torch.no_grad():
        right = [
            net.eval()(x).argmax(-1) == y for x, y in zip(*map(_parts, _test(data)), strict=True)
        ]
    return float(torch.cat(right).float().mean())


def _test(data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return data["test_inputs"], data["test_targets"]


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.split(256)


def arguments() -> argparse.Namespace:
    """Return what `benchmarks.simulators` asks of a tool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--started", type=float, default=time.time(), help="when the process was started"
    )
    return parser.parse_args()


def report(started: float, marks: list[float], score: float, packages: tuple[str, ...]) -> None:
    """Print the result as a line of JSON; `marks` are the ends of all rounds, warm-up first."""
    result = {
        "seconds_setup": marks[0] - started,
        "seconds_per_round": (marks[-1] - marks[0]) / (len(marks) - 1),
        "rounds": len(marks) - 1,
        "accuracy": score,
        "versions": {"python": platform.python_version()}
        | {p: version(p) for p in ("torch", *packages)},
    }
    print(json.dumps(result), file=sys.stdout, flush=True)
