"""Centralised training, on the data of all clients: Ordered Dropout beside single models.

Section 3.2 and Fig. 3 of the paper.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace, uniform_widths
from fjord.data.federated import Batch, PartitionedData, PrepareInputs, TestSet
from fjord.elastic.batchnorm import BatchNormMode
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.experiments import value_kinds as kinds
from fjord.experiments.settings import accept_settings, recipe_part, setting, settings_as_json
from fjord.training.evaluate import (
    ExampleScores,
    Score,
    score_examples,
    score_network,
    to_channels_last,
)
from fjord.training.objective import Objective, ordered_dropout, self_distillation
from fjord.training.schedule import scheduled_lr

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "od": ordered_dropout,
    "od-kd": self_distillation,
    "single": ordered_dropout,
}
TEST_BATCH = 64
"""Examples per forward pass in a test, as in federated runs."""


@dataclass(frozen=True, kw_only=True)
class CentralExperiment:
    """Everything that a centralised run depends on.

    `fjord show RECIPE` prints every setting with its value and what it does.
    """

    name: str = field(metadata=recipe_part("The name of the experiment."))
    model: Callable[[], nn.Module] = field(
        metadata=recipe_part("Makes the model; torch's generator is seeded before.")
    )
    data: Callable[[int], PartitionedData] = field(
        metadata=recipe_part("Makes the clients, whose data is put together.")
    )
    method: str = setting(
        "od",
        kinds.choice_of(OBJECTIVES),
        "od, od-kd, or single: one model for each width, the full one also with random units.",
    )
    widths: WidthSpace = setting(
        uniform_widths(5), kinds.WIDTH_SPACE, "The widths P, and how likely each is sampled."
    )
    freeze: tuple[str, ...] = setting((), kinds.NAMES, "Layers that keep all their units.")
    norms: BatchNormMode = setting(
        "layers",
        kinds.NORMS,
        "What each width has of its own: BatchNorm layers, statistics or nothing.",
    )

    epochs: int = setting(20, kinds.COUNT, "Epochs of training.")
    batch_size: int = setting(128, kinds.COUNT, "Examples in a step.")
    lr: float = setting(0.1, kinds.POSITIVE_NUMBER, "Step size.")
    momentum: float = setting(0.9, kinds.NUMBER_BELOW_ONE, "Momentum of SGD.")
    milestones: tuple[Fraction, ...] = setting(
        (),
        kinds.MILESTONES,
        "Shares of the epochs after which the step size is multiplied by decay.",
    )
    decay: float = setting(
        0.1, kinds.POSITIVE_NUMBER, "The factor of the step size at a milestone."
    )
    max_examples: int | None = setting(
        None, kinds.OPTIONAL_COUNT, "Examples to train on, chosen by the seed; none: all."
    )
    max_test: int | None = setting(
        None, kinds.OPTIONAL_COUNT, "Examples to test on, the same for every seed; none: all."
    )
    eval_every: int = setting(1, kinds.COUNT, "Epochs from one test to the next.")
    draws: int = setting(5, kinds.COUNT, "Submodels of random units scored at each width.")

    metric: str = setting("accuracy", kinds.METRIC, "What tables and figures show.")
    seed: int = setting(0, kinds.WHOLE_NUMBER, "Decides everything random.")

    def __post_init__(self) -> None:
        accept_settings(self)

    @property
    def targets(self) -> tuple[Width, ...]:
        """The widths of the models to train, one after the other."""
        if self.method == "single":
            return self.widths.widths
        return (self.widths.largest,)

    def config(self) -> dict[str, Any]:
        """Return all settings as plain data, with the names that federated runs have too."""
        config = settings_as_json(self)
        config["num_rounds"] = self.epochs
        config["targets"] = [str(target) for target in self.targets]
        return config

    def lr_at(self, epoch: int) -> float:
        """Return the step size of an epoch."""
        return scheduled_lr(
            self.lr, epoch, total=self.epochs, milestones=self.milestones, decay=self.decay
        )

    def build_model(self, data: PartitionedData, target: Width) -> ElasticModel:
        """Return the untrained model: the same weights for every target."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "weights"))
            net = self.model()
        space = WidthSpace.of([target]) if self.method == "single" else self.widths
        example, _ = data.test.batch(0, 2)
        return elasticize(net, example, widths=space, freeze=self.freeze, norms=self.norms)

    def training_batches(self, data: PartitionedData) -> "ShuffledBatches":
        """Return the training data, or as much of it as is wanted."""
        inputs, targets = data.all_examples()
        rows = _select_rows(len(inputs), self.max_examples, derive_seed(self.seed, "subset"))
        return ShuffledBatches(inputs[rows], targets[rows], self.batch_size, data.prepare)

    def test_set(self, data: PartitionedData) -> TestSet:
        """Return the test data, or as much of it as is wanted."""
        test = data.test
        rows = _select_rows(len(test.inputs), self.max_test, derive_seed(0, "test subset"))
        return replace(
            test, inputs=test.inputs[rows], targets=test.targets[rows], owners=test.owners[rows]
        )


def _select_rows(count: int, wanted: int | None, seed: int) -> Tensor | slice:
    """Return which of so many examples are used, in order."""
    if wanted is None or wanted >= count:
        return slice(None)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(count, generator=generator)[:wanted]
    return chosen.sort().values


@dataclass(frozen=True)
class ShuffledBatches:
    """Examples in a new order each time they are iterated, by torch's global generator."""

    inputs: Tensor
    targets: Tensor
    batch_size: int
    prepare: PrepareInputs

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches.

        A last example on its own joins the batch before it, as BatchNorm cannot train on one.
        """
        order = torch.randperm(len(self.inputs))
        sizes = list(map(len, order.split(self.batch_size)))
        if len(sizes) > 1 and sizes[-1] == 1:
            sizes[-2:] = [sizes[-2] + 1]
        for rows in order.split(sizes):
            inputs = self.prepare(self.inputs[rows], torch.default_generator)
            yield inputs, self.targets[rows]


def score_widths(model: ElasticModel, test: TestSet) -> dict[Width, Score]:
    """Score the model at each of its widths."""
    scores = {}
    for width, parts in score_examples(model, test, model.space.widths, TEST_BATCH).items():
        scores[width] = ExampleScores.join(parts).score()
    return scores


def score_random_units(
    model: ElasticModel, test: TestSet, widths: WidthSpace, draws: int, seed: int
) -> dict[str, Any]:
    """Score submodels of random units: for each width the loss and accuracy of each draw."""
    starts = range(0, len(test.inputs), TEST_BATCH)
    batches = [test.batch(start, start + TEST_BATCH) for start in starts]
    scores: dict[str, dict[str, list[float]]] = {}
    for width in widths.widths:
        seed_here = derive_seed(seed, "random units", str(width))
        generator = torch.Generator().manual_seed(seed_here)
        losses = []
        accuracies = []
        for _ in range(draws):
            net = _random_submodel(model, width, generator)
            score = score_network(to_channels_last(net), batches)
            losses.append(score.loss)
            accuracies.append(score.accuracy)
        scores[str(width)] = {"loss": losses, "accuracy": accuracies}
    return scores


def _random_submodel(model: ElasticModel, width: Width, generator: torch.Generator) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody trained the norms of this width: it is the point
        return model.cut(width, model.plan.random_units(width, generator)).eval()
