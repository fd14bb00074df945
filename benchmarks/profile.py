"""Whether a profile is right: `python -m benchmarks.profile [resnet18] [cnn] [rnn]`.

For each model of the paper, with its batches, three tables of ratios within one run: memory and
step time of the widths between the smallest and the largest, predicted from those two alone, over
what was measured; a real client's round over the time that the profile says; and whether the width
that is picked meets a deadline midway to the next, and the next does not. Profiles and rounds take
turns, as many machines do not keep their own pace for minutes.
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
from fjord.experiments.profiling.memory import JsonDict, run_in_child
from fjord.experiments.profiling.predict import workload_shape
from fjord.experiments.profiling.profile import profile_federation
from fjord.experiments.profiling.workload import federation_of_model
from fjord.federated.rounds import Federation
from fjord.models.catalog import find_model
from fjord.training.local import ClientTrainer
from fjord.training.objective import Objective, ordered_dropout, self_distillation

OUT = Console(width=120, highlight=False)
TURNS = 3
KD_NAMES = {True: "with KD", False: "without KD"}
WidthKind = tuple[Width, bool | None]
"""A width, with distillation or without."""
PREDICTION_COLUMNS = (
    "width",
    "",
    "memory, MB",
    "predicted",
    "shapes alone",
    "line in p^2",
    "a step, ms",
    "predicted",
)


@dataclass(frozen=True)
class PaperCase:
    """How a model of the paper is trained."""

    shape: str | None
    """The shape of an example; None for the model's own."""
    batch_size: int
    examples: int
    """Of a round: enough steps that each width is drawn often."""


CASES = {
    "resnet18": PaperCase("2x3x24x24", 32, 640),
    "cnn": PaperCase(None, 16, 1600),
    "rnn": PaperCase("2x80", 4, 400),
}


def make_federation(name: str) -> Federation:
    case = CASES[name]
    entry = find_model(name, case.shape)
    elastic = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    federation = federation_of_model(elastic, entry.inputs[0], None, case.batch_size, 1)
    examples = gather_examples(federation.data, case.batch_size, case.examples)
    federation.data = single_client_data(examples, federation.data)
    return federation


def make_objective(kd: bool | None) -> Objective:
    if kd:
        return self_distillation()
    return ordered_dropout()


def real_round(federation: Federation, ceiling: Width, kd: bool | None, seed: int) -> float:
    """Return the seconds of a client's round in a process that has trained before.

    This is what a profile assumes.
    """
    training = replace(federation.training, objective=make_objective(kd))
    model = federation.model
    data = federation.data

    def train_client() -> JsonDict:
        torch.set_num_threads(1)
        warm_up = ClientTrainer(model, data, replace(training, max_steps=1), 0)
        warm_up(federation.assign_at(federation.space.widths[0]))
        trainer = ClientTrainer(model, data, training, seed)
        task = federation.assign_at(ceiling)
        started = time.perf_counter()
        trainer(received_copy(task))
        return {"seconds": time.perf_counter() - started}

    return float(run_in_child(train_client)["seconds"])


def print_predictions(name: str, federation: Federation, measured: DeviceProfile) -> None:
    smallest = federation.space.widths[0]
    largest = federation.space.largest
    predicted = profile_federation(
        federation, measure=[smallest, largest], examples=CASES[name].examples
    )
    title = f"{name}: predicted from {smallest} and {largest}, over measured"
    table = Table(*PREDICTION_COLUMNS, title=title)
    rows = federation.data.examples(0)
    for kd in measured.kd_kinds:
        low = predicted.find_cost(smallest, kd)
        high = predicted.find_cost(largest, kd)
        for width in federation.space.widths[1:-1]:
            shape = workload_shape(federation, width, make_objective(kd), rows, {})
            real = measured.find_cost(width, kd)
            guess = predicted.find_cost(width, kd)
            memory = real.memory_bytes
            table.add_row(
                str(width),
                KD_NAMES[bool(kd)],
                f"{memory / 1e6:.1f}",
                f"{guess.memory_bytes / memory:.2f}",
                f"{shape.memory / memory:.2f}",
                f"{memory_on_square(width, low, high) / memory:.2f}",
                f"{real.step_seconds * 1e3:.2f}",
                f"{guess.step_seconds / real.step_seconds:.2f}",
            )
    OUT.print(table)


def memory_on_square(width: Width, low: WidthCost, high: WidthCost) -> float:
    """Return memory on a line in the square of the width."""
    share = (width**2 - low.width**2) / (high.width**2 - low.width**2)
    return low.memory_bytes + float(share) * (high.memory_bytes - low.memory_bytes)


@dataclass(frozen=True)
class ProfileTurn:
    """A profile, and the rounds that came right after it, in seconds."""

    profile: DeviceProfile
    profiled: dict[WidthKind, float]
    real: dict[WidthKind, float]

    @classmethod
    def measure(cls, federation: Federation, budget: Budget, seed: int) -> Self:
        """Profile, then train; the seed draws the widths of the steps."""
        profile = profile_federation(federation, examples=budget.examples)
        profiled: dict[WidthKind, float] = {}
        for kd in profile.kd_kinds:
            for verdict in profile.check_budget(budget, kd):
                profiled[verdict.cost.width, kd] = verdict.seconds
        real = {}
        for width, kd in profiled:
            real[width, kd] = real_round(federation, width, kd, seed)
        return cls(profile, profiled, real)

    def picks_right(self, width: Width, wider: Width, kd: bool | None, budget: Budget) -> bool:
        """Return whether a deadline midway picks the narrower width, and rightly.

        The narrower width really has to meet the deadline, and the wider one has to miss it.
        """
        deadline = (self.profiled[width, kd] + self.profiled[wider, kd]) / 2
        picked = self.profile.widest_fit(replace(budget, deadline=deadline), kd)
        return picked == width and self.real[width, kd] <= deadline < self.real[wider, kd]


def print_rounds(name: str, turns: list[ProfileTurn], budget: Budget) -> None:
    title = f"{name}: a round of {budget.examples} examples"
    table = Table("width", "", "profile, s", "real, s", "real / profile", title=title)
    for key in turns[0].profiled:
        width, kd = key
        profiled = median(turn.profiled[key] for turn in turns)
        real = median(turn.real[key] for turn in turns)
        ratio = median(turn.real[key] / turn.profiled[key] for turn in turns)
        table.add_row(
            str(width),
            KD_NAMES[bool(kd)],
            f"{profiled:.3f}",
            f"{real:.3f}",
            f"{ratio:.2f}",
        )
    OUT.print(table)


def print_deadlines(name: str, turns: list[ProfileTurn], budget: Budget) -> None:
    columns = ("width", "the next", "", "deadline midway: right in")
    table = Table(*columns, title=f"{name}: deadlines")
    profile = turns[0].profile
    for kd in profile.kd_kinds:
        for width, wider in pairwise(profile.widths):
            right = sum(turn.picks_right(width, wider, kd, budget) for turn in turns)
            count = f"{right} of {len(turns)}"
            table.add_row(str(width), str(wider), KD_NAMES[bool(kd)], count)
    OUT.print(table)


def main() -> None:
    for name in sys.argv[1:] or CASES:
        federation = make_federation(name)
        budget = Budget(examples=CASES[name].examples)
        turns = [ProfileTurn.measure(federation, budget, seed) for seed in range(TURNS)]
        print_predictions(name, federation, turns[-1].profile)
        print_rounds(name, turns, budget)
        print_deadlines(name, turns, budget)


if __name__ == "__main__":
    main()
