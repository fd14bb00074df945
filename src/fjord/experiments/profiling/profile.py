"""`fjord.profile_training`: step time, training memory and bytes at each width, on this device."""

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthLike, WidthSpace, parse_width
from fjord.devices.profile import CostSource, DeviceProfile, WidthCost
from fjord.elastic.model import ElasticModel
from fjord.experiments.experiment import Experiment
from fjord.experiments.profiling.measure import StepMeasurement, TrainingBench, gather_examples
from fjord.experiments.profiling.memory import ChildOutOfMemory
from fjord.experiments.profiling.predict import (
    FootprintCache,
    WorkloadShape,
    predict_memory,
    predict_setup,
    predict_steps,
    workload_shape,
)
from fjord.experiments.profiling.workload import check_count, federation_of_model
from fjord.federated.rounds import Federation
from fjord.training.assignment import total_bytes
from fjord.training.objective import Objective, ordered_dropout, self_distillation

OnProgress = Callable[[str], None]
"""Is called with a line about what is measured next."""
DEFAULT_BATCH_SIZE = 16
LOSS_NAMES: dict[bool | None, str] = {
    True: " with distillation",
    False: " without distillation",
    None: "",
}


def ignore_progress(line: str) -> None:
    """Show nothing."""


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
    on_progress: OnProgress = ignore_progress,
) -> DeviceProfile:
    """Measure what training costs at each width, with and without distillation (or as `kd` says).

    `model` is a network with example inputs, or a recipe's Experiment, which brings its method,
    batches and data. Widths that are not in `measure` are predicted. `examples` is how many
    examples a client holds in memory.
    """
    if isinstance(model, Experiment):
        experiment = _change_experiment(model, widths, batch_size, epochs)
        federation = experiment.federation(-1)
        name = name or experiment.name
    else:
        if batch_size is None:
            batch_size = DEFAULT_BATCH_SIZE
        if epochs is None:
            epochs = 1
        federation = federation_of_model(model, inputs, widths, batch_size, epochs)
    return profile_federation(
        federation,
        kd=kd,
        measure=measure,
        examples=examples,
        device=device,
        name=name,
        on_progress=on_progress,
    )


def _change_experiment(
    experiment: Experiment, widths: WidthSpace | None, batch_size: int | None, epochs: int | None
) -> Experiment:
    """Return a recipe's experiment with the settings that are not None."""
    changes: dict[str, Any] = {}
    if batch_size is not None:
        changes["batch_size"] = batch_size
    if epochs is not None:
        changes["local_epochs"] = epochs
    if widths is not None:  # the recipe's tiers need not go with other widths
        changes |= {"widths": widths, "tiers": "1:1", "drop_scale": 1, "devices": None}
    return replace(experiment, **changes)


def profile_federation(
    federation: Federation,
    *,
    kd: bool | None = None,
    measure: Iterable[WidthLike] | None = None,
    examples: int | None = None,
    device: str = "",
    name: str = "",
    on_progress: OnProgress = ignore_progress,
) -> DeviceProfile:
    """Measure what training a federation's model costs a client of each ceiling."""
    if examples is not None:
        check_count("examples", examples)
    widths = federation.space.widths
    selected = widths
    if measure is not None:
        selected = tuple(sorted({_check_width(width, widths) for width in measure}))
    training = federation.training
    count = examples or training.batch_size * len(widths)
    rows = gather_examples(federation.data, training.batch_size, count)
    costs: list[WidthCost] = []
    process_bytes = 0
    cache = FootprintCache()
    for loss_kd, objective in _objectives_to_measure(federation, kd).items():
        survey = _CeilingSurvey(TrainingBench(federation, rows, objective), loss_kd)
        survey.read_shapes(cache)
        survey.measure_widths(selected, on_progress)
        costs += [survey.width_cost(width) for width in widths]
        for measured in survey.measured.values():
            process_bytes = max(process_bytes, measured.process)
    return DeviceProfile(
        device=device or platform.node() or "device",
        model=name or type(federation.model.blueprint.template).__name__,
        method=federation.method.name,
        batch_size=training.batch_size,
        epochs=training.epochs,
        process_bytes=process_bytes,
        costs=tuple(costs),
        max_steps=training.max_steps,
    )


def _objectives_to_measure(federation: Federation, kd: bool | None) -> dict[bool | None, Objective]:
    """Return the losses to measure, the recipe's own first; the key tells of distillation."""
    objectives: dict[bool, Objective] = {True: self_distillation(), False: ordered_dropout()}
    if kd is not None:
        return {kd: objectives[kd]}
    own = uses_distillation(federation)
    if own is None:
        return {None: federation.method.objective}
    return {own: objectives[own], not own: objectives[not own]}


def uses_distillation(federation: Federation) -> bool | None:
    """Return whether a federation trains with distillation.

    None stands for a method with a loss of its own.
    """
    return {"fjord-kd": True, "fjord": False}.get(federation.method.name)


def _check_width(text: WidthLike, widths: tuple[Width, ...]) -> Width:
    width = parse_width(text)
    if width not in widths:
        known = ", ".join(map(str, widths))
        raise UserError(f"measure: width {width} is not one of {known}")
    return width


@dataclass
class _CeilingSurvey:
    """The ceilings under one loss: what was measured, and what failed."""

    bench: TrainingBench
    kd: bool | None
    shapes: dict[Width, WorkloadShape] = field(default_factory=dict)
    measured: dict[Width, StepMeasurement] = field(default_factory=dict)
    failed: dict[Width, str] = field(default_factory=dict)

    def read_shapes(self, cache: FootprintCache) -> None:
        """Read the shapes of all ceilings."""
        bench = self.bench
        for width in bench.federation.space.widths:
            self.shapes[width] = workload_shape(
                bench.federation, width, bench.objective, bench.examples, cache
            )

    def measure_widths(self, selected: Iterable[Width], on_progress: OnProgress) -> None:
        """Measure some ceilings in rising order; after one that fails, no wider one is tried."""
        for width in selected:
            on_progress(f"measuring width {width}{LOSS_NAMES[self.kd]}")
            try:
                self.measured[width] = self.bench.measure(width)
            except ChildOutOfMemory as error:
                for other in self.bench.federation.space.widths:
                    if other >= width:
                        self.failed[other] = str(error)
                break

    def width_cost(self, width: Width) -> WidthCost:
        """Return the cost of one ceiling, measured or predicted."""
        shape = self.shapes[width]
        step_seconds, setup_seconds = self._seconds(width)
        memory_bytes, memory_source = self._memory(width)
        return WidthCost(
            width=width,
            kd=self.kd,
            step_seconds=step_seconds,
            setup_seconds=setup_seconds,
            memory_bytes=memory_bytes,
            bytes_down=shape.task.num_bytes,
            bytes_up=total_bytes(shape.task.tensors),
            macs_per_step=shape.macs,
            time=self._time_source(width),
            memory=memory_source,
            note=self.failed.get(width, ""),
        )

    def _time_source(self, width: Width) -> CostSource:
        if width in self.failed:
            return "failed"
        if width in self.measured:
            return "measured"
        return "predicted"

    def _seconds(self, width: Width) -> tuple[float, float]:
        """Return the seconds of a step, and those of a round before and after the steps."""
        shape = self.shapes[width]
        if width in self.measured:
            measured = self.measured[width]
            return shape.mean(measured.steps), measured.setup
        ceilings = {}
        for other, measurement in self.measured.items():
            ceilings[other] = (self.shapes[other], measurement)
        setup = predict_setup(shape, ceilings)
        if not ceilings:
            return 0.0, setup
        return shape.mean(predict_steps(shape, ceilings)), setup

    def _memory(self, width: Width) -> tuple[int, CostSource]:
        """Return the memory of a ceiling, and whether it was measured."""
        ceilings: dict[Width, tuple[WorkloadShape, int]] = {}
        for other, measured in self.measured.items():
            if measured.memory is not None:
                shape = self.shapes[other]
                # A small model fits unseen into pages that are in use already; so what must be
                # in memory at once is a lower bound.
                ceilings[other] = (shape, max(measured.memory, shape.least))
        if width in ceilings:
            return ceilings[width][1], "measured"
        return predict_memory(self.shapes[width], ceilings), "predicted"
