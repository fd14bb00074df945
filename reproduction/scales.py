"""How much of the paper's work is run: all of it, or what a laptop does in an evening."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fjord.core.errors import UserError

PAPER_SEEDS = (0, 1, 2)
"""The paper reports the mean and deviation of three runs."""


@dataclass(frozen=True)
class ScaleReduction:
    """What is changed in a task's recipe, and the seeds it is run with."""

    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = PAPER_SEEDS


@dataclass(frozen=True)
class RunScale:
    """Reductions by task; a task that is not named is run as in the paper's appendix."""

    name: str
    tasks: tuple[str, ...]
    """The paper's three tasks at this scale."""
    reductions: Mapping[str, ScaleReduction] = field(default_factory=dict)

    def reduction_for(self, task: str) -> ScaleReduction:
        """Return what is changed for a task."""
        return self.reductions.get(task, ScaleReduction())


SKEWED_CIFAR = ScaleReduction(("num_rounds=50", "eval_every=10"), (0,))
SMALL_CIFAR = (
    "epochs=4",
    "max_examples=5000",
    "batch_size=32",
    "lr=0.025",  # the learning rate shrinks with the batch
    "max_test=2000",
    "eval_every=4",
)
LAPTOP: dict[str, ScaleReduction] = {
    "cifar10": ScaleReduction(("num_rounds=100", "eval_every=20"), (0,)),
    "cifar10-dirichlet-0.5": SKEWED_CIFAR,
    "cifar10-dirichlet-0.1": SKEWED_CIFAR,
    "cifar10-central": ScaleReduction(SMALL_CIFAR, (0,)),
    "emnist-central": ScaleReduction(("epochs=5",), (0,)),
    "shakespeare-central": ScaleReduction(("epochs=6",), (0,)),
}
SCALES: dict[str, RunScale] = {
    "paper": RunScale("paper", ("cifar10", "femnist", "shakespeare")),
    "laptop": RunScale("laptop", ("cifar10", "emnist-skewed", "shakespeare"), LAPTOP),
}


def find_scale(name: str) -> RunScale:
    """Return a scale by name."""
    if name not in SCALES:
        raise UserError(f"must be one of: {', '.join(SCALES)}", field="scale", value=name)
    return SCALES[name]


def scale_table(scale: RunScale) -> str:
    """Return a scale's reductions as a Markdown table."""
    lines = [f"| {scale.name} | changed | seeds |", "|---|---|---|"]
    for task, reduction in scale.reductions.items():
        changed = ", ".join(f"`{setting}`" for setting in reduction.settings)
        seeds = ", ".join(str(seed) for seed in reduction.seeds)
        lines.append(f"| {task} | {changed} | {seeds} |")
    return "\n".join(lines)
