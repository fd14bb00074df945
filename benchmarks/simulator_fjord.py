"""FedAvg by this library, one of the tools of `benchmarks.simulators`."""

import time

import torch

from benchmarks.simulator_task import BATCH, COHORT, LR, accuracy, arguments, read, report
from fjord.data.federated import GeneratedData, TestSet
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.experiment import Experiment
from fjord.models import femnist_cnn
from fjord.training.local import ClientTrainer

NEVER = 1_000_000
"""More rounds than are run: the last one is evaluated, and no tool evaluates while it is timed."""


def clients(path: str) -> GeneratedData:
    data = read(path)
    test = TestSet(
        data["test_inputs"], data["test_targets"], torch.full_like(data["test_targets"], -1)
    )
    pairs = list(zip(data["inputs"], data["targets"], strict=True))
    return GeneratedData(len(pairs), pairs.__getitem__, test)


def main() -> None:
    torch.set_num_threads(1)
    asked = arguments()
    experiment = Experiment(
        name="fedavg",
        model=femnist_cnn,
        data=lambda seed: clients(asked.data),
        method="fedavg",
        num_rounds=NEVER,
        eval_every=NEVER,
        cohort_size=COHORT,
        batch_size=BATCH,
        lr=LR,
        milestones=(),
        seed=asked.seed,
    )
    federation = next(iter(experiment.federations()))
    trainer = ClientTrainer(federation.model, federation.data, federation.training, asked.seed)
    with InProcessEngine(federation, workers=asked.workers, trainer=trainer) as engine:
        rounds = federation.rounds(engine)
        marks = []
        for _ in range(asked.rounds + 1):
            next(rounds)
            marks.append(time.time())
    report(asked.started, marks, accuracy(federation.model.cut("1"), asked.data), ())


if __name__ == "__main__":
    main()
