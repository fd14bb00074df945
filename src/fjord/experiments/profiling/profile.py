"""`fjord.profile_training`: step time, training memory and bytes at each width, on this device."""

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthLike, WidthSpace, parse_width
from fjord.devices.profile import DeviceProfile, Source, WidthCost
from fjord.elastic.model import ElasticModel
from fjord.experiments.experiment import Experiment
from fjord.experiments.profiling.measure import StepMeasurement, TrainingBench, gather_examples
from fjord.experiments.profiling.memory import ChildOutOfMemory
from fjord.experiments.profiling.predict import (
    Seen,
    WorkloadShape,
    predict_memory,
    predict_setup,
    predict_steps,
    workload_shape,
)
from fjord.experiments.profiling.workload import federation_of_model
from fjord.federated.rounds import Federation
from fjord.training.local import total_bytes
from fjord.training.objective import Objective, ordered_dropout, self_distillation

Say = Callable[[str], None]


def profile_training(
    model: nn.Module | ElasticModel | Experiment,
    inputs: Tensor | None = None,
    *,
    widths: WidthSpace | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    kd: bool | None = None,
    measure: Iterable[WidthLike] | None = None,
    examples: int | None = None,
    device: str = "",
    name: str = "",
    say: Say = lambda line: None,
) -> DeviceProfile:
    """Measure what training costs at each width, with and without distillation (or as `kd` says).

    `model` is a network with example inputs, or a recipe's Experiment, which brings its method, batches and data.
    Widths that `measure` leaves out are predicted; `examples` is how many a client holds in memory.
    """
    if isinstance(model, Experiment):
        given = {"batch_size": batch_size, "local_epochs": epochs}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if widths is not None:  # the recipe's tiers need not go with other widths
            changes |= {"widths": widths, "tiers": "1:1", "drop_scale": 1, "devices": None}
        model = replace(model, **changes)
        federation, name = model.federation(-1), name or model.name
    else:
        sizes = 16 if batch_size is None else batch_size, 1 if epochs is None else epochs
        federation = federation_of_model(model, inputs, widths, *sizes)
    return profile_federation(
        federation, kd=kd, measure=measure, examples=examples, device=device, name=name, say=say
    )


def profile_federation(
    federation: Federation,
    *,
    kd: bool | None = None,
    measure: Iterable[WidthLike] | None = None,
    examples: int | None = None,
    device: str = "",
    name: str = "",
    say: Say = lambda line: None,
) -> DeviceProfile:
    """Measure what training a federation's model costs a client of each ceiling."""
    if examples is not None and (type(examples) is not int or examples < 1):
        raise UserError(f"examples={examples} must be a whole number of at least 1")
    widths = federation.space.widths
    chosen = (
        widths if measure is None else tuple(sorted({_one_of(widths, width) for width in measure}))
    )
    how = federation.training
    rows = gather_examples(federation.data, how.batch_size, examples or how.batch_size * len(widths))
    costs: list[WidthCost] = []
    process, seen = 0, Seen()
    for kind, objective in _objectives(federation, kd).items():
        survey = _Survey(TrainingBench(federation, rows, objective), kind, {}, {}, {})
        survey.look(chosen, seen, say)
        costs += [survey.cost(width) for width in widths]
        process = max([process, *(measured.process for measured in survey.measured.values())])
    return DeviceProfile(
        device or platform.node() or "device",
        name or type(federation.model.blueprint.template).__name__,
        federation.method.name,
        how.batch_size,
        how.epochs,
        process,
        tuple(costs),
        how.max_steps,
    )


def _objectives(federation: Federation, kd: bool | None) -> dict[bool | None, Objective]:
    """Return the losses to measure, the recipe's own first."""
    known: dict[bool | None, Objective] = {True: self_distillation(), False: ordered_dropout()}
    if kd is not None:
        return {kd: known[kd]}
    own = uses_distillation(federation)
    if own is None:
        return {None: federation.method.objective}
    return {own: known[own], not own: known[not own]}


def uses_distillation(federation: Federation) -> bool | None:
    """Say whether a federation trains with distillation; None where its method has a loss of its own."""
    return {"fjord-kd": True, "fjord": False}.get(federation.method.name)


def _one_of(widths: tuple[Width, ...], text: WidthLike) -> Width:
    width = parse_width(text)
    if width not in widths:
        raise UserError(f"measure: width {width} is not one of {', '.join(map(str, widths))}")
    return width


@dataclass
class _Survey:
    """The ceilings under one loss: what was measured, and what failed."""

    bench: TrainingBench
    kd: bool | None
    shapes: dict[Width, WorkloadShape]
    measured: dict[Width, StepMeasurement]
    failed: dict[Width, str]

    def look(self, chosen: Iterable[Width], seen: Seen, say: Say) -> None:
        """Learn the shapes of all ceilings, and measure those chosen: after one that fails, no wider one is tried."""
        federation, rows = self.bench.federation, self.bench.examples
        for width in federation.space.widths:
            self.shapes[width] = workload_shape(federation, width, self.bench.objective, rows, seen)
        for width in chosen:
            say(f"measuring width {width}{_SUFFIX[self.kd]}")
            try:
                self.measured[width] = self.bench.measure(width)
            except ChildOutOfMemory as error:
                wider = [w for w in federation.space.widths if w >= width]
                self.failed |= dict.fromkeys(wider, str(error))
                break

    def cost(self, width: Width) -> WidthCost:
        """Return the cost of one ceiling, measured or predicted."""
        shape, measured = self.shapes[width], self.measured.get(width)
        known = {w: (self.shapes[w], m) for w, m in self.measured.items()}
        # What must be held is a lower bound: a small model fits into pages that are there already, unseen.
        memories = {
            w: (s, max(m.memory, s.least)) for w, (s, m) in known.items() if m.memory is not None
        }
        steps = measured.steps if measured else predict_steps(shape, known) if known else {}
        time: Source = "failed" if width in self.failed else "measured" if measured else "predicted"
        memory: Source = "measured" if width in memories else "predicted"
        return WidthCost(
            width=width,
            kd=self.kd,
            step_seconds=shape.mean(steps) if steps else 0.0,
            setup_seconds=measured.setup if measured else predict_setup(shape, known),
            memory_bytes=memories[width][1]
            if width in memories
            else predict_memory(shape, memories),
            bytes_down=shape.task.bytes,
            bytes_up=total_bytes(shape.task.tensors),
            macs_per_step=shape.macs,
            time=time,
            memory=memory,
            note=self.failed.get(width, ""),
        )


_SUFFIX: dict[bool | None, str] = {
    True: " with distillation",
    False: " without distillation",
    None: "",
}
