"""`fjord-kd` compared with the same objective that always runs both passes."""

from dataclasses import replace

from rich.table import Table
from torch import Tensor

from benchmarks.federated.tasks import ALL_WHOLE, OUT, touched, unscored
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import GeneratedData, TestSet
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.experiment import Experiment
from fjord.federated.methods import fjord_kd
from fjord.training.objective import LogitsAt, Objective, cross_entropy, distillation_loss


def both_passes(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
    """Return the objective of fjord-kd without the shortcut where teacher and student are one."""
    teacher, student = logits_at(widest), logits_at(width)
    return cross_entropy(teacher, target) + distillation_loss(student, teacher, target)


def always_both(width: Width, widest: Width) -> tuple[Width, ...]:
    """Say that every step runs both submodels, also where they are one."""
    return (widest, width)


def few_rounds(experiment: Experiment, count: int) -> tuple[dict[str, Tensor], int, float]:
    """Return the weights after some rounds, the multiply-accumulates they took and the seconds."""
    federation, trainer = touched(experiment)
    with InProcessEngine(federation, trainer=trainer) as engine:
        records = [
            record for record, _ in zip(federation.rounds(engine), range(count), strict=False)
        ]
    macs = sum(tier.macs for record in records for tier in record.tiers.values())
    return federation.model.state_dict(), macs, sum(record.seconds for record in records)


def in_double(experiment: Experiment) -> Experiment:
    """Return the same in double precision: what differs by rounding alone then all but vanishes."""

    def data(seed: int) -> GeneratedData:
        single = experiment.data(seed)
        made = [(x.double(), y) for x, y in map(single.examples, range(single.num_clients))]
        test = TestSet(single.test.inputs.double(), single.test.targets, single.test.owners)
        return GeneratedData(len(made), made.__getitem__, test)

    return replace(experiment, model=lambda: experiment.model().double(), data=data)


def gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    """Return the largest difference of two sets of weights."""
    largest = max(float((one[key] - other[key]).abs().max()) for key in one)
    return f"{largest:.1e}" if largest else "0, bit-equal"


def distillation() -> None:
    """Compare fjord-kd with the objective that skips nothing, in single and double precision."""
    literal = replace(fjord_kd(), objective=Objective(both_passes, always_both))
    table = Table(
        "5 rounds of 10 clients",
        "MACs",
        "skipping none",
        "ratio",
        "seconds",
        "gap, float32",
        "float64",
    )
    table.title = (
        "fjord-kd skips the student where it is the teacher (limit: same weights, fewer MACs)"
    )
    for name, change in (
        ("five tiers", {}),
        ("all at full width", {"widths": WidthSpace.of(["1"]), **ALL_WHOLE}),
    ):
        experiment = replace(unscored(10), method="fjord-kd", **change)
        own, macs, seconds = few_rounds(experiment, 5)
        other, all_macs, all_seconds = few_rounds(replace(experiment, method=literal), 5)
        exact = in_double(experiment)
        fine, finer = (few_rounds(e, 5)[0] for e in (exact, replace(exact, method=literal)))
        times = f"{seconds:.2f} / {all_seconds:.2f}"
        counts = (f"{macs / 1e9:.2f} G", f"{all_macs / 1e9:.2f} G", f"{macs / all_macs:.3f}")
        table.add_row(name, *counts, times, gap(own, other), gap(fine, finer))
    OUT.print(table)
