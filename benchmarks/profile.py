"""Whether a profile is right, as ratios within one run: `python -m benchmarks.profile [resnet18] [cnn] [rnn]`.

For each model of the paper, with its batches, three tables: memory and step time of the widths between the smallest and
the largest, predicted from those two alone, over what was measured; a real client's round over what the profile says it
takes; and whether the width that is picked meets a deadline midway to the next, and the next does not.
"""

import sys
import time
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

import fjord
from fjord.devices.budget import Budget
from fjord.devices.profile import Cost, Profile
from fjord.federation import Federation
from fjord.local import Trainer
from fjord.models.catalog import find_model
from fjord.objective import plain, self_distillation
from fjord.profiling.measure import gathered, only, received
from fjord.profiling.memory import in_child
from fjord.profiling.predict import shape_of
from fjord.profiling.profile import profile_federation
from fjord.profiling.workload import of_model
from fjord.width import Width

OUT = Console(width=120, highlight=False)
MODELS = {"resnet18": ("2x3x24x24", 32, 256), "cnn": (None, 16, 1600), "rnn": ("2x80", 4, 400)}
"""The shape of an example, the batch, and the examples of a round: enough steps that each width is drawn often."""
WORDS = {True: "with KD", False: "without KD"}


def federation_of(name: str) -> Federation:
    shape, batch_size, examples = MODELS[name]
    entry = find_model(name, shape)
    elastic = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    federation = of_model(elastic, entry.inputs[0], None, batch_size, 1)
    federation.data = only(gathered(federation.data, batch_size, examples), federation.data)
    return federation


def real_round(federation: Federation, ceiling: Width, kd: bool) -> float:
    """Return what a client's round takes in a process of its own that has trained before, as a profile assumes."""
    training = replace(federation.training, objective=self_distillation() if kd else plain())

    def work() -> dict[str, float]:
        torch.set_num_threads(1)
        once = Trainer(federation.model, federation.data, replace(training, max_steps=1), 0)
        once(federation.task_at(federation.space.widths[0]))
        trainer, task = Trainer(federation.model, federation.data, training, 0), federation.task_at(ceiling)
        started = time.perf_counter()
        trainer(received(task))
        return {"seconds": time.perf_counter() - started}

    return median(float(in_child(work)["seconds"]) for _ in range(3))


def predictions(name: str, federation: Federation, measured: Profile) -> None:
    ends = [federation.space.widths[0], federation.space.largest]
    predicted = profile_federation(federation, measure=ends, examples=MODELS[name][2])
    title = f"{name}: predicted from {ends[0]} and {ends[1]}, over measured"
    table = Table(
        "width", "", "memory, MB", "predicted", "shapes alone", "line in p^2", "a step, ms", "predicted", title=title
    )
    rows = federation.data.examples(0)
    for kd in measured.kinds:
        low, high = (predicted.cost(width, kd) for width in ends)
        for width in federation.space.widths[1:-1]:
            real, guess = measured.cost(width, kd), predicted.cost(width, kd)
            shape = shape_of(federation, width, self_distillation() if kd else plain(), rows, {})
            ratios = [n / real.memory_bytes for n in (guess.memory_bytes, shape.memory, _squared(width, low, high))]
            memory = [f"{real.memory_bytes / 1e6:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
            steps = [f"{real.step_seconds * 1e3:.2f}", f"{guess.step_seconds / real.step_seconds:.2f}"]
            table.add_row(str(width), WORDS[bool(kd)], *memory, *steps)
    OUT.print(table)


def _squared(width: Width, low: Cost, high: Cost) -> float:
    """Return memory on a line in the square of the width."""
    place = float((width**2 - low.width**2) / (high.width**2 - low.width**2))
    return low.memory_bytes + place * (high.memory_bytes - low.memory_bytes)


def rounds(name: str, federation: Federation, measured: Profile) -> None:
    budget = Budget(examples=MODELS[name][2])
    table = Table(
        "width", "", "profile, s", "real, s", "real / profile", title=f"{name}: a round of {budget.examples} examples"
    )
    picks = Table(
        "deadline, s",
        "",
        "picked",
        "its real round",
        "the next",
        "its real round",
        "as it should",
        title=f"{name}: deadlines",
    )
    for kd in measured.kinds:
        said = {v.cost.width: v.seconds for v in measured.verdicts(budget, kd)}
        real = {width: real_round(federation, width, bool(kd)) for width in said}
        for width, seconds in said.items():
            cells = (f"{seconds:.3f}", f"{real[width]:.3f}", f"{real[width] / seconds:.2f}")
            table.add_row(str(width), WORDS[bool(kd)], *cells)
        for width, wider in pairwise(said):
            deadline = (said[width] + said[wider]) / 2
            picked = measured.widest(replace(budget, deadline=deadline), kd)
            fine = "yes" if real[width] <= deadline < real[wider] and picked == width else "NO"
            cells = (str(picked), f"{real[width]:.3f}", str(wider), f"{real[wider]:.3f}", fine)
            picks.add_row(f"{deadline:.3f}", WORDS[bool(kd)], *cells)
    OUT.print(table, picks)


def main() -> None:
    for name in sys.argv[1:] or MODELS:
        federation = federation_of(name)
        measured = profile_federation(federation, examples=MODELS[name][2])
        predictions(name, federation, measured)
        rounds(name, federation, measured)


if __name__ == "__main__":
    main()
