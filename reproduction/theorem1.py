"""Theorem 1, by experiment: Ordered Dropout on a linear network recovers the SVD (appendix D).

`python -m reproduction theorem1` runs the paper's setting, then a decaying learning rate over more
steps. The paper shows that the distance to the best rank-k approximation goes to zero for every k.
A constant learning rate keeps the noise of its last batches: it ends at a few per cent. About 20 s
on one core.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import uniform_widths
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.experiments.runs import RunFolder
from fjord.models import two_layer_linear
from fjord.training.loop import train_step
from fjord.training.objective import ordered_dropout
from fjord.training.optim import SlicedOptimizer

DECAY_START = 10_000
"""The step after which a decaying learning rate falls."""


@dataclass(frozen=True)
class Theorem1Setting:
    """The setting of the experiment."""

    size: int = 5
    steps: int = 10_000
    batch_size: int = 32
    lr: float = 0.1
    decay: bool = False
    """After 10,000 steps, divide the learning rate by 1 + t / 500, which lets the noise die out."""
    seed: int = 0
    log_every: int = 100


def paper_setting() -> Theorem1Setting:
    """Return the paper's setting: 5x5, singular values 5 to 1, lr 0.1, batch 32, 10,000 steps."""
    return Theorem1Setting()


def decaying_setting() -> Theorem1Setting:
    """Return the same with a decaying learning rate and 40,000 steps."""
    return replace(paper_setting(), steps=40_000, decay=True)


RECIPES: dict[str, Callable[[], Theorem1Setting]] = {
    "theorem1.paper": paper_setting,
    "theorem1.decaying": decaying_setting,
}


def target_matrix(size: int, seed: int) -> Tensor:
    """Return a random matrix whose singular values are size, size - 1, ..., 1."""
    noise = torch.randn(size, size, generator=_generator(seed, "matrix"))
    u, _, vt = torch.linalg.svd(noise)
    return u @ torch.diag(torch.arange(size, 0, -1.0)) @ vt


def best_approximation(matrix: Tensor, rank: int) -> Tensor:
    """Return the closest matrix of this rank (Eckart and Young)."""
    u, s, vt = torch.linalg.svd(matrix)
    return u[:, :rank] * s[:rank] @ vt[:rank]


def unit_ball(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw points uniformly from the unit ball."""
    direction = torch.randn(count, size, generator=generator)
    radius = torch.rand(count, 1, generator=generator) ** (1 / size)
    return radius * direction / direction.norm(dim=1, keepdim=True)


def squared_error(output: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean over examples of |F_p(x) - y|^2, as in the theorem."""
    return (output - wanted).square().sum(-1).mean()


def rank_distances(model: ElasticModel, matrix: Tensor) -> list[float]:
    """Return |F_k - A_k| / |A_k| in the Frobenius norm for each rank k."""
    size = len(matrix)
    distances = []
    for rank in range(1, size + 1):
        submodel = model.at(Fraction(rank, size))
        first, second = (weight.detach() for weight in submodel.parameters())
        best = best_approximation(matrix, rank)
        distance = (second @ first - best).norm() / best.norm()
        distances.append(float(distance))
    return distances


def run_steps(setting: Theorem1Setting) -> Iterator[tuple[int, list[float]]]:
    """Run the experiment; yield (step, relative distance for each k) every `log_every` steps."""
    matrix = target_matrix(setting.size, setting.seed)
    net = two_layer_linear(setting.size, setting.size, _generator(setting.seed, "weights"))
    model = elasticize(net, torch.zeros(2, setting.size), widths=uniform_widths(setting.size))
    optimizer = SlicedOptimizer(model, partial(torch.optim.SGD, lr=setting.lr))
    objective = ordered_dropout(squared_error)
    width_draws = random.Random(derive_seed(setting.seed, "width"))
    point_draws = _generator(setting.seed, "points")
    yield 0, rank_distances(model, matrix)
    for step in range(1, setting.steps + 1):
        x = unit_ball(setting.batch_size, setting.size, point_draws)
        if setting.decay:
            factor = 1 + max(0, step - DECAY_START) / 500
            optimizer.full.param_groups[0]["lr"] = setting.lr / factor
        batch = (x, x @ matrix.T)
        widths = (model.space.sample(width_draws), model.space.largest)
        train_step(model, optimizer, objective, batch, widths)
        if step % setting.log_every == 0 or step == setting.steps:
            yield step, rank_distances(model, matrix)


def run_into_folder(setting: Theorem1Setting, folder: Path, *, resume: bool = False) -> RunFolder:
    """Run the experiment into a folder; with `resume` again from its start, as it is short."""
    config = {"recipe": "theorem1", **asdict(setting)}
    if resume:
        run = RunFolder(folder)
        if run.config != config:
            raise UserError(f"{folder}: was begun with other settings; run it into a new folder")
        run.keep_rows(lambda row: False)
    else:
        run = RunFolder.create(folder, config)
    run.append({"step": step, "distance": distances} for step, distances in run_steps(setting))
    return run


def is_finished(run: RunFolder) -> bool:
    """Say whether a run has its last step."""
    rows = run.metrics()
    return bool(rows) and rows[-1]["step"] == run.config["steps"]


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "theorem1", name))
