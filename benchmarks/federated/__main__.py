"""Measure what federated training costs: `python -m benchmarks.federated [NAME...]`.

NAME is one of `bare`, `workers`, `rounds`, `merge`, `memory`, `population`, `distillation`; without
a name all of them run, in about ten minutes on two idle cores. Each prints a table of ratios within
one run, with its limit:

bare          a round with one worker / a bare PyTorch loop of the same steps on prebuilt submodels
workers       rounds with one worker / rounds with two
rounds        500 rounds of the paper's CNN task, two workers, run folder and checkpoints included
merge         merging 10 updates of ResNet18 / copying their bytes
memory        the peak while 10 and 100 full-size updates are merged, in models
population    set-up and rounds with 100,000 clients / those with 100
distillation  `fjord-kd` / the same objective that always runs both passes: weights and MACs

Compared variants take turns, so that a slow moment hits both; every process has one thread.
"""

import os
import sys

import torch

from benchmarks.federated.bare import bare
from benchmarks.federated.distilling import distillation
from benchmarks.federated.merging import memory, merge
from benchmarks.federated.scaling import population, rounds, workers
from benchmarks.federated.tasks import OUT, timed

BARS = (bare, workers, rounds, merge, memory, population, distillation)


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    known = {bar.__name__: bar for bar in BARS}
    strange = [name for name in names if name not in known]
    if strange:
        sys.exit(f"{', '.join(strange)}: unknown; known: {', '.join(known)}")
    OUT.print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in names or known:
        seconds = timed(known[name])
        OUT.print(f"{name}: {seconds:.0f} s in all\n")


if __name__ == "__main__":
    main(sys.argv[1:])
