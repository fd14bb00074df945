"""Training on one place, with the data of all clients: Ordered Dropout beside single models (section 3.2, Fig. 3)."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace, as_space, uniform_widths
from fjord.data.federated import Batch, PartitionedData, PrepareInputs, TestSet
from fjord.elastic.batchnorm import BatchNormMode
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.experiments.settings import check_field, settings_as_json
from fjord.training.evaluate import (
    ExampleScores,
    Score,
    score_examples,
    score_network,
    to_channels_last,
)
from fjord.training.objective import Objective, ordered_dropout, self_distillation

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "od": ordered_dropout,
    "od-kd": self_distillation,
    "single": ordered_dropout,
}
BATCH = 64
"""Examples per forward pass in a test, as in federated runs."""


@dataclass(frozen=True, kw_only=True)
class CentralExperiment:
    """Everything a run depends on. `fjord run RECIPE --set key=value` changes one field."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[int], PartitionedData]
    """Makes the clients, whose data is put together."""
    method: str = "od"
    """od, od-kd, or single: a model for each width in turn, the full one scored with units left out at random too."""
    widths: WidthSpace = field(default_factory=lambda: uniform_widths(5))
    freeze: tuple[str, ...] = ()
    norms: BatchNormMode = "layers"

    epochs: int = 20
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    milestones: tuple[Fraction, ...] = ()
    decay: float = 0.1
    max_examples: int | None = None
    """Train on this many, chosen by the seed."""
    max_test: int | None = None
    """Test on this many, the same for every seed."""
    eval_every: int = 1
    draws: int = 5
    """How many submodels of random units are scored at each width."""

    metric: str = "accuracy"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", as_space(self.widths))
        if self.method not in OBJECTIVES:
            raise UserError(f"method={self.method} must be one of {', '.join(OBJECTIVES)}")
        for name in ("epochs", "batch_size", "eval_every", "draws"):
            check_field(
                self, name, lambda v: type(v) is int and v >= 1, "a whole number of at least 1"
            )
        for name in ("lr", "decay"):
            check_field(self, name, lambda v: 0 < v < math.inf, "above 0")
        check_field(self, "momentum", lambda v: 0 <= v < 1, "at least 0 and below 1")
        for name in ("max_examples", "max_test"):
            check_field(self, name, lambda v: v is None or v >= 1, "1 or more, or none")
        check_field(
            self,
            "milestones",
            lambda v: all(0 < m <= 1 for m in v),
            "shares of the epochs, such as 1/2,3/4",
        )
        check_field(
            self, "metric", lambda v: v in ("accuracy", "perplexity"), "accuracy or perplexity"
        )
        check_field(
            self,
            "norms",
            lambda v: v in ("layers", "statistics", "shared"),
            "layers, statistics or shared",
        )
        check_field(self, "seed", lambda v: type(v) is int, "a whole number")

    @property
    def targets(self) -> tuple[Width, ...]:
        """The widths of the models to train, one after the other."""
        return self.widths.widths if self.method == "single" else (self.widths.largest,)

    def config(self) -> dict[str, Any]:
        """Return all fields as plain data, with the names under which federated runs have them."""
        return {
            **settings_as_json(self),
            "num_rounds": self.epochs,
            "targets": [str(target) for target in self.targets],
        }

    def lr_at(self, epoch: int) -> float:
        """Return the step size of an epoch."""
        return self.lr * self.decay ** sum(
            epoch >= share * self.epochs for share in self.milestones
        )

    def elastic(self, data: PartitionedData, target: Width) -> ElasticModel:
        """Return the untrained model: the same weights for every target."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "weights"))
            net = self.model()
        space = WidthSpace.of([target]) if self.method == "single" else self.widths
        return elasticize(
            net, data.test.batch(0, 2)[0], widths=space, freeze=self.freeze, norms=self.norms
        )

    def batches(self, data: PartitionedData) -> "ShuffledBatches":
        """Return the training data, or as much of it as is wanted."""
        inputs, targets = data.all_examples()
        rows = _some(len(inputs), self.max_examples, derive_seed(self.seed, "subset"))
        return ShuffledBatches(inputs[rows], targets[rows], self.batch_size, data.prepare)

    def test(self, data: PartitionedData) -> TestSet:
        """Return the test data, or as much of it as is wanted."""
        rows = _some(len(data.test.inputs), self.max_test, derive_seed(0, "test subset"))
        test = data.test
        return replace(
            test, inputs=test.inputs[rows], targets=test.targets[rows], owners=test.owners[rows]
        )


def _some(count: int, wanted: int | None, seed: int) -> Tensor | slice:
    """Return which of so many examples are taken, in order."""
    if wanted is None or wanted >= count:
        return slice(None)
    return (
        torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:wanted].sort().values
    )


@dataclass(frozen=True)
class ShuffledBatches:
    """Examples in a new order each time they are gone through, by torch's global generator."""

    inputs: Tensor
    targets: Tensor
    batch_size: int
    prepare: PrepareInputs

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; a last example on its own joins the batch before it, as BatchNorm cannot train on one."""
        order = torch.randperm(len(self.inputs))
        sizes = [len(rows) for rows in order.split(self.batch_size)]
        if len(sizes) > 1 and sizes[-1] == 1:
            sizes[-2:] = [sizes[-2] + 1]
        for rows in order.split(sizes):
            yield self.prepare(self.inputs[rows], torch.default_generator), self.targets[rows]


def score_widths(model: ElasticModel, test: TestSet) -> dict[Width, Score]:
    """Score the model at each of its widths."""
    return {
        w: ExampleScores.joined(parts).score()
        for w, parts in score_examples(model, test, model.space.widths, BATCH).items()
    }


def score_random_units(
    model: ElasticModel, test: TestSet, widths: WidthSpace, draws: int, seed: int
) -> dict[str, Any]:
    """Score submodels of random units of a full model: for each width the loss and accuracy of each draw."""
    found: dict[str, dict[str, list[float]]] = {}
    batches = [test.batch(start, start + BATCH) for start in range(0, len(test.inputs), BATCH)]
    for width in widths.widths:
        generator = torch.Generator().manual_seed(derive_seed(seed, "random units", str(width)))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # that no one trained the norms of this width: it is the point
            nets = [
                model.cut(width, model.plan.random_units(width, generator)).eval()
                for _ in range(draws)
            ]
        each = [score_network(net, batches) for net in map(to_channels_last, nets)]
        found[str(width)] = {"loss": [s.loss for s in each], "accuracy": [s.accuracy for s in each]}
    return found
