"""Whether a profile is right, as ratios within one run: `python -m benchmarks.profile [resnet18] [cnn] [rnn]`.

For each model of the paper, with its batches, three tables: memory and step time of the widths between the smallest and
the largest, predicted from those two alone, over what was measured; a real client's round over what the profile says it
takes; and whether the width that is picked meets a deadline midway to the next, and the next does not. Profiles and
rounds take turns, as many machines do not keep their own pace for minutes.
"""

import sys
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Self

import torch
from rich.console import Console
from rich.table import Table

import fjord
from fjord.core.width import Width
from fjord.devices.budget import Budget
from fjord.devices.profile import DeviceProfile, WidthCost
from fjord.experiments.profiling.measure import gather_examples, received_copy, single_client_data
from fjord.experiments.profiling.memory import run_in_child
from fjord.experiments.profiling.predict import workload_shape
from fjord.experiments.profiling.profile import profile_federation
from fjord.experiments.profiling.workload import federation_of_model
from fjord.federated.rounds import Federation
from fjord.models.catalog import find_model
from fjord.training.local import ClientTrainer
from fjord.training.objective import ordered_dropout, self_distillation

OUT = Console(width=120, highlight=False)
MODELS = {"resnet18": ("2x3x24x24", 32, 640), "cnn": (None, 16, 1600), "rnn": ("2x80", 4, 400)}
"""The shape of an example, the batch, and the examples of a round: enough steps that each width is drawn often."""
TURNS = 3
Kind = tuple[Width, bool | None]
"""A width, with distillation or without."""
WORDS = {True: "with KD", False: "without KD"}


def federation_of(name: str) -> Federation:
    shape, batch_size, examples = MODELS[name]
    entry = find_model(name, shape)
    elastic = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    federation = federation_of_model(elastic, entry.inputs[0], None, batch_size, 1)
    federation.data = single_client_data(gather_examples(federation.data, batch_size, examples), federation.data)
    return federation


def real_round(federation: Federation, ceiling: Width, kd: bool, seed: int) -> float:
    """Return what a client's round takes in a process of its own that has trained before, as a profile assumes."""
    training = replace(
        federation.training, objective=self_distillation() if kd else ordered_dropout()
    )

    def work() -> dict[str, float]:
        torch.set_num_threads(1)
        once = ClientTrainer(federation.model, federation.data, replace(training, max_steps=1), 0)
        once(federation.task_at(federation.space.widths[0]))
        trainer, task = (
            ClientTrainer(federation.model, federation.data, training, seed),
            federation.task_at(ceiling),
        )
        started = time.perf_counter()
        trainer(received_copy(task))
        return {"seconds": time.perf_counter() - started}

    return float(run_in_child(work)["seconds"])


def predictions(name: str, federation: Federation, measured: DeviceProfile) -> None:
    ends = [federation.space.widths[0], federation.space.largest]
    predicted = profile_federation(federation, measure=ends, examples=MODELS[name][2])
    title = f"{name}: predicted from {ends[0]} and {ends[1]}, over measured"
    table = Table(
        "width",
        "",
        "memory, MB",
        "predicted",
        "shapes alone",
        "line in p^2",
        "a step, ms",
        "predicted",
        title=title,
    )
    rows = federation.data.examples(0)
    for kd in measured.kd_kinds:
        low, high = (predicted.cost(width, kd) for width in ends)
        for width in federation.space.widths[1:-1]:
            real, guess = measured.cost(width, kd), predicted.cost(width, kd)
            shape = workload_shape(
                federation, width, self_distillation() if kd else ordered_dropout(), rows, {}
            )
            ratios = [
                n / real.memory_bytes
                for n in (guess.memory_bytes, shape.memory, _squared(width, low, high))
            ]
            memory = [f"{real.memory_bytes / 1e6:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
            steps = [
                f"{real.step_seconds * 1e3:.2f}",
                f"{guess.step_seconds / real.step_seconds:.2f}",
            ]
            table.add_row(str(width), WORDS[bool(kd)], *memory, *steps)
    OUT.print(table)


def _squared(width: Width, low: WidthCost, high: WidthCost) -> float:
    """Return memory on a line in the square of the width."""
    place = float((width**2 - low.width**2) / (high.width**2 - low.width**2))
    return low.memory_bytes + place * (high.memory_bytes - low.memory_bytes)


@dataclass(frozen=True)
class Turn:
    """A profile, and the rounds that came right after it."""

    profile: DeviceProfile
    said: dict[Kind, float]
    real: dict[Kind, float]

    @classmethod
    def take(cls, federation: Federation, budget: Budget, seed: int) -> Self:
        """Profile, then train; the seed draws the widths of the steps."""
        profile = profile_federation(federation, examples=budget.examples)
        said = {
            (v.cost.width, kd): v.seconds
            for kd in profile.kd_kinds
            for v in profile.check_budget(budget, kd)
        }
        return cls(
            profile,
            said,
            {(width, kd): real_round(federation, width, bool(kd), seed) for width, kd in said},
        )

    def right(self, width: Width, wider: Width, kd: bool | None, budget: Budget) -> bool:
        """Say whether a deadline midway picks the narrower width, which really meets it, as the wider does not."""
        deadline = (self.said[width, kd] + self.said[wider, kd]) / 2
        picked = self.profile.widest_fit(replace(budget, deadline=deadline), kd)
        return picked == width and self.real[width, kd] <= deadline < self.real[wider, kd]


def rounds(name: str, turns: list[Turn], budget: Budget) -> None:
    title = f"{name}: a round of {budget.examples} examples"
    table = Table("width", "", "profile, s", "real, s", "real / profile", title=title)
    picks = Table("width", "the next", "", "deadline midway: right in", title=f"{name}: deadlines")
    first = turns[0]
    for width, kd in first.said:
        said, real = (
            median(getattr(t, what)[width, kd] for t in turns) for what in ("said", "real")
        )
        ratio = median(t.real[width, kd] / t.said[width, kd] for t in turns)
        table.add_row(str(width), WORDS[bool(kd)], f"{said:.3f}", f"{real:.3f}", f"{ratio:.2f}")
    for kd in first.profile.kd_kinds:
        for width, wider in pairwise(width for width, kind in first.said if kind == kd):
            right = sum(turn.right(width, wider, kd, budget) for turn in turns)
            picks.add_row(str(width), str(wider), WORDS[bool(kd)], f"{right} of {len(turns)}")
    OUT.print(table, picks)


def main() -> None:
    for name in sys.argv[1:] or MODELS:
        federation, budget = federation_of(name), Budget(examples=MODELS[name][2])
        turns = [Turn.take(federation, budget, seed) for seed in range(TURNS)]
        predictions(name, federation, turns[-1].profile)
        rounds(name, turns, budget)


if __name__ == "__main__":
    main()
