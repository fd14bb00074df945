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
from fjord.training.objective import StepLoss, ordered_dropout
from fjord.training.optim import CorrectGradient, MakeOptimizer, SlicedOptimizer

MakeScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class EpochRecord:
    """What one pass over the data came to."""

    index: int
    loss: float
    lr: float
    steps: dict[Width, int] = field(default_factory=dict)
    """How often each width was sampled."""
    scores: dict[Width, Score] = field(default_factory=dict)


def train_step(
    model: ElasticModel,
    optimizer: SlicedOptimizer,
    objective: StepLoss,
    batch: tuple[Tensor, Tensor],
    widths: tuple[Width, Width],
    correction: CorrectGradient | None = None,
) -> Tensor:
    """Take one step at (sampled, widest) width; only weights of the submodels it ran move."""
    inputs, target = batch
    width, widest = widths
    optimizer.zero_grad()

    def logits_at(width: Width) -> Tensor:
        logits: Tensor = model.shared_submodel(width).net(inputs)
        return logits

    loss = objective(logits_at, target, width, widest)
    loss.backward()
    optimizer.step(correction)
    return loss.detach()


def fit(
    model: ElasticModel,
    batches: Batches,
    optimizer: MakeOptimizer,
    *,
    epochs: int,
    objective: StepLoss | None = None,
    space: WidthSpace | Iterable[WidthLike] | None = None,
    schedule: MakeScheduler | None = None,
    test: Batches | None = None,
    seed: int = 0,
    progress: bool = False,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
) -> list[EpochRecord]:
    """Train with widths sampled from `space` (by default the model's own).

    A space of a single width trains that width alone. `batches` is iterated once per epoch; torch's
    global generator is seeded by name for each epoch (shuffling, dropout) and restored afterwards.
    `test` is scored at every width after each epoch.
    """
    if epochs < 1:
        raise UserError("must be at least 1", field="epochs", value=epochs)
    if not isinstance(model, ElasticModel):
        kind = type(model).__name__
        raise UserError(f"model must be an ElasticModel, made by fjord.elasticize, not a {kind}")
    sampled_space = model.space if space is None else as_space(space)
    stepper = SlicedOptimizer(model, optimizer)
    scheduler = schedule(stepper.full) if schedule else None
    history: list[EpochRecord] = []
    with _progress_bar(progress) as bar, torch.random.fork_rng():
        task = bar.add_task("epochs", total=epochs, note="")
        for index in range(epochs):
            epoch = train_epoch(
                model,
                stepper,
                batches,
                index=index,
                objective=objective,
                space=sampled_space,
                seed=seed,
            )
            if scheduler:
                scheduler.step()
            if test is not None:
                epoch = replace(epoch, scores=evaluate(model, test))
            history.append(epoch)
            if on_epoch:
                on_epoch(epoch)
            bar.update(task, advance=1, note=_describe_epoch(epoch))
    model.sync_copies()
    return history


def _progress_bar(shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        disable=not shown,
    )


def _describe_epoch(epoch: EpochRecord) -> str:
    scores = [f"{width}: {score.accuracy:.1%}" for width, score in epoch.scores.items()]
    return f"loss {epoch.loss:.4f}  {'  '.join(scores)}"


def train_epoch(
    model: ElasticModel,
    stepper: SlicedOptimizer,
    batches: Batches,
    *,
    index: int,
    objective: StepLoss | None = None,
    space: WidthSpace | Iterable[WidthLike] | None = None,
    seed: int = 0,
) -> EpochRecord:
    """Iterate the batches once, as `fit` does in the epoch of this index.

    torch's global generator is seeded.
    """
    sampled_space = model.space if space is None else as_space(space)
    step_loss = objective or ordered_dropout()
    epoch_seed = derive_seed(seed, "epoch", index)
    lr = stepper.full.param_groups[0]["lr"]
    model.train()
    torch.manual_seed(epoch_seed)
    rng = random.Random(derive_seed(epoch_seed, "width"))
    total_loss = torch.zeros(())
    steps = dict.fromkeys(sampled_space.widths, 0)
    for batch in batches:
        width = sampled_space.sample(rng)
        loss = train_step(model, stepper, step_loss, batch, (width, sampled_space.largest))
        total_loss = total_loss + loss.cpu()
        steps[width] += 1
    num_steps = sum(steps.values())
    if num_steps == 0:
        hint = ""
        if index:
            hint = "; an iterator is used up after one pass: give a list or a DataLoader"
        raise UserError(f"batches: there is nothing to train on in epoch {index + 1}{hint}")
    return EpochRecord(index, float(total_loss) / num_steps, lr, steps)
