"""A round with one worker, compared with a bare PyTorch loop of the same steps."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from benchmarks.federated.tasks import OUT, resnet, rnn, timed, touched, unscored
from fjord.core.width import Width
from fjord.data.federated import Batch
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.experiment import Experiment
from fjord.federated.rounds import Federation
from fjord.training.local import ClientTrainer
from fjord.training.objective import LogitsAt, Objective

Step = tuple[Batch, Width, Width]
"""A batch, the width it is trained at, and the widest that the client holds."""


def record_steps(trainer: ClientTrainer) -> list[Step]:
    """Return a list to which the trainer adds every step it takes from now on."""
    found: list[Step] = []
    coming: deque[Batch] = deque()
    objective = trainer.training.objective
    make = trainer._batches

    def batches(inputs: Tensor, targets: Tensor, seed: int) -> Iterator[Batch]:
        for batch in make(inputs, targets, seed):
            coming.append(batch)
            yield batch

    def noted(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        found.append((coming.popleft(), width, widest))
        assert found[-1][0][1] is target
        return objective(logits_at, target, width, widest)

    trainer._batches = batches  # type: ignore[method-assign]
    trainer.training = replace(trainer.training, objective=Objective(noted, objective.widths))
    return found


class BareLoop:
    """Plain modules, prebuilt at each width, and a plain optimizer for each; nothing federated."""

    def __init__(self, federation: Federation) -> None:
        self.distils = federation.method.name == "fjord-kd"
        self.nets = {
            width: federation.model.cut(width).train() for width in federation.space.widths
        }
        make = partial(torch.optim.SGD, lr=federation.schedule.lr)
        self.optimizers = {width: make(net.parameters()) for width, net in self.nets.items()}

    def __call__(self, steps: Iterable[Step]) -> None:
        """Take the steps of a round."""
        for (inputs, target), width, widest in steps:
            ran = {width, widest} if self.distils else {width}
            for used in ran:
                self.optimizers[used].zero_grad()
            self.loss(inputs, target.flatten(), width, widest).backward()
            for used in ran:
                self.optimizers[used].step()

    def loss(self, inputs: Tensor, target: Tensor, width: Width, widest: Width) -> Tensor:
        """Return the loss of one step, written out."""
        if not self.distils:
            return F.cross_entropy(self.nets[width](inputs).flatten(0, -2), target)
        teacher = self.nets[widest](inputs).flatten(0, -2)
        taught = F.cross_entropy(teacher, target)
        if width == widest:
            return taught
        student = self.nets[width](inputs).flatten(0, -2)
        known, guessed = teacher.detach().log_softmax(-1), student.log_softmax(-1)
        return taught + F.kl_div(guessed, known, reduction="batchmean", log_target=True)


def against_bare(experiment: Experiment, warm_up: int, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of our round and of the bare loop, and their median ratio."""
    federation, trainer = touched(experiment)
    bare, steps, pairs = BareLoop(federation), record_steps(trainer), list[tuple[float, float]]()
    with InProcessEngine(federation, workers=1, trainer=trainer) as engine:
        ours = federation.rounds(engine)
        for _ in range(warm_up + rounds):
            pairs.append((timed(partial(next, ours)), timed(partial(bare, steps))))
            steps.clear()
    kept = pairs[warm_up:]
    return median(p[0] for p in kept), median(p[1] for p in kept), median(p[0] / p[1] for p in kept)


def bare() -> None:
    """Compare a round of one worker with a bare PyTorch loop over the same steps."""
    table = Table(
        "task",
        "a round, s",
        "bare loop, s",
        "ratio",
        title="one worker over a bare loop (limit: at most 1.10)",
    )
    kd = {"method": "fjord-kd"}
    for name, experiment, warm_up, rounds in (
        ("CNN, fjord", unscored(10), 4, 40),
        ("CNN, fjord-kd", replace(unscored(10), **kd), 4, 30),
        ("RNN, fjord", rnn(5), 4, 25),
        ("RNN, fjord-kd", replace(rnn(5), **kd), 4, 15),
        ("ResNet18, fjord, 2 steps a client", resnet(5), 2, 6),
        ("ResNet18, fjord, 8 steps a client", resnet(5, steps=8), 1, 2),
    ):
        own, other, ratio = against_bare(experiment, warm_up, rounds)
        table.add_row(name, f"{own:.3f}", f"{other:.3f}", f"{ratio:.3f}")
    OUT.print(table)
