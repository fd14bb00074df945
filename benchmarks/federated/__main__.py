"""What federated training costs, as ratios within one run: `python -m benchmarks.federated [NAME...]`.

NAME is one of `bare`, `workers`, `rounds`, `merge`, `memory`, `population`, `distillation`; without a name all of
them run, in about ten minutes on two cores with nothing else on them. Each prints a table with its bar:

bare          a round with one worker over a bare PyTorch loop that takes the same steps on prebuilt submodels
workers       rounds with one worker over rounds with two
rounds        500 rounds of the paper's CNN task with two workers, run folder and checkpoints included
merge         merging 10 updates of ResNet18 over copying their bytes
memory        the peak while 10 and 100 full-size updates are merged, in models
population    set-up and rounds with 100,000 clients over those with 100
distillation  `fjord-kd` over the same objective that runs both passes always: weights and multiply-accumulates

What is compared takes turns, so that a slow moment hits both; every process computes with one thread.
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
