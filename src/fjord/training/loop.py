"""Centralised training with Ordered Dropout (section 3.2)."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthLike, WidthSpace, as_space
from fjord.elastic.model import ElasticModel
from fjord.training.evaluate import Batches, Score, evaluate
from fjord.training.objective import Objective, ordered_dropout
from fjord.training.optim import CorrectGradient, MakeOptimizer, SlicedOptimizer

MakeScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class EpochRecord:
    """What one pass over the data came to."""

    index: int
    loss: float
    lr: float
    steps: dict[Width, int] = field(default_factory=dict)
    scores: dict[Width, Score] = field(default_factory=dict)


def train_step(
    model: ElasticModel,
    optimizer: SlicedOptimizer,
    objective: Objective,
    batch: tuple[Tensor, Tensor],
    widths: tuple[Width, Width],
    correct: CorrectGradient | None = None,
) -> Tensor:
    """Take one step at (sampled, widest) width; only weights of the submodels it ran move."""
    inputs, target = batch
    optimizer.zero_grad()

    def logits_at(width: Width) -> Tensor:
        logits: Tensor = model.shared_submodel(width).net(inputs)
        return logits

    loss = objective(logits_at, target, *widths)
    loss.backward()
    optimizer.step(correct)
    return loss.detach()


def fit(
    model: ElasticModel,
    batches: Batches,
    optimizer: MakeOptimizer,
    *,
    epochs: int,
    objective: Objective | None = None,
    space: WidthSpace | Iterable[WidthLike] | None = None,
    schedule: MakeScheduler | None = None,
    test: Batches | None = None,
    seed: int = 0,
    progress: bool = False,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
) -> list[EpochRecord]:
    """Train with widths sampled from `space` (by default the model's own; a single width trains that one alone).

    `batches` is gone through once per epoch; torch's global generator is seeded by name for each epoch
    (shuffling, dropout) and put back afterwards. `test` is scored at every width after each epoch.
    """
    if epochs < 1:
        raise UserError(f"epochs={epochs} must be at least 1")
    if not isinstance(model, ElasticModel):
        raise UserError(
            f"model must be an ElasticModel, made by fjord.elasticize, not a {type(model).__name__}"
        )
    sampled = model.space if space is None else as_space(space)
    stepper = SlicedOptimizer(model, optimizer)
    scheduler = schedule(stepper.full) if schedule else None
    history: list[EpochRecord] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not progress) as bar, torch.random.fork_rng():
        task = bar.add_task("epochs", total=epochs, note="")
        for index in range(epochs):
            epoch = train_epoch(
                model, stepper, batches, index=index, objective=objective, space=sampled, seed=seed
            )
            if scheduler:
                scheduler.step()
            history.append(replace(epoch, scores=evaluate(model, test) if test is not None else {}))
            if on_epoch:
                on_epoch(history[-1])
            bar.update(task, advance=1, note=_note(history[-1]))
    model.sync_copies()
    return history


def train_epoch(
    model: ElasticModel,
    stepper: SlicedOptimizer,
    batches: Batches,
    *,
    index: int,
    objective: Objective | None = None,
    space: WidthSpace | Iterable[WidthLike] | None = None,
    seed: int = 0,
) -> EpochRecord:
    """Go once through the batches, as `fit` does in the epoch of this index; torch's global generator is seeded."""
    sampled = model.space if space is None else as_space(space)
    lr = stepper.full.param_groups[0]["lr"]
    model.train()
    loss, steps = _epoch(
        model,
        stepper,
        objective or ordered_dropout(),
        batches,
        sampled,
        derive_seed(seed, "epoch", index),
    )
    if not any(steps.values()):
        used_up = (
            "; an iterator is used up after one pass: give a list or a DataLoader" if index else ""
        )
        raise UserError(f"batches: there is nothing to train on in epoch {index + 1}{used_up}")
    return EpochRecord(index, loss, lr, steps)


def _epoch(
    model: ElasticModel,
    stepper: SlicedOptimizer,
    objective: Objective,
    batches: Iterable[tuple[Tensor, Tensor]],
    space: WidthSpace,
    seed: int,
) -> tuple[float, dict[Width, int]]:
    torch.manual_seed(seed)
    rng = random.Random(derive_seed(seed, "width"))
    total, count = torch.zeros(()), 0
    steps = dict.fromkeys(space.widths, 0)
    for batch in batches:
        width = space.sample(rng)
        total = total + train_step(model, stepper, objective, batch, (width, space.largest)).cpu()
        steps[width] += 1
        count += 1
    return float(total) / max(1, count), steps


def _note(epoch: EpochRecord) -> str:
    scores = "  ".join(f"{w}: {s.accuracy:.1%}" for w, s in epoch.scores.items())
    return f"loss {epoch.loss:.4f}  {scores}"
