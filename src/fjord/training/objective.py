"""The losses of section 3.2: plain Ordered Dropout, and self-distillation from the widest submodel.

Class scores stand in the last axis; targets equal to `IGNORED_TARGET` (padding) do not count.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.data.federated import IGNORED_TARGET

LogitsAt = Callable[[Width], Tensor]
"""Runs the submodel of a width on the batch of the step."""
LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps (class scores, targets) to a loss."""
StepLoss = Callable[[LogitsAt, Tensor, Width, Width], Tensor]
"""Maps (logits at a width, targets, the sampled width, the widest one) to the loss of a step."""


@dataclass(frozen=True)
class Objective:
    """The loss of a training step, and which submodels it runs.

    A step samples one width; `widest` is the widest that the client (or the model) has. Costs are
    counted and predicted from `widths`, so it must name every submodel that `loss` runs, once for
    each time.

    >>> ordered_dropout().widths(Width(1, 5), Width(1))
    (Fraction(1, 5),)
    >>> self_distillation().widths(Width(1, 5), Width(1))
    (Fraction(1, 1), Fraction(1, 5))
    """

    loss: StepLoss
    widths: Callable[[Width, Width], tuple[Width, ...]]
    """Maps (the sampled width, the widest one) to the widths that a step runs, in their order."""

    def __call__(self, logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        """Return the loss of one step."""
        return self.loss(logits_at, target, width, widest)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy over all targets that count; 0 where none does."""
    classes = class_numbers(target)
    if bool((classes == IGNORED_TARGET).all()):
        return 0.0 * logits.sum()
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), classes, ignore_index=IGNORED_TARGET
    )


def class_numbers(target: Tensor) -> Tensor:
    """Return class numbers flat and in the type torch wants."""
    if target.is_floating_point():
        raise UserError(f"targets are {target.dtype}; class numbers must be whole")
    return target.reshape(-1).long()


def distillation_loss(
    student: Tensor, teacher: Tensor, target: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return T^2 * KL(teacher || student) at temperature T.

    The teacher's distribution is the target and gets no gradient.
    """
    num_classes = student.shape[-1]
    student_logits = student.reshape(-1, num_classes)
    teacher_logits = teacher.detach().reshape(-1, num_classes)
    log_student = F.log_softmax(student_logits / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher_logits / temperature, dim=-1)
    divergence = F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1)
    counted = (target.reshape(-1) != IGNORED_TARGET).to(student.dtype)
    return temperature**2 * (divergence * counted).sum() / counted.sum().clamp(min=1)


def ordered_dropout(loss: LossFunction = cross_entropy) -> Objective:
    """Return plain Ordered Dropout: the loss of the sampled submodel alone."""

    def sampled_loss(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        return loss(logits_at(width), target)

    return Objective(sampled_loss, sampled_width_only)


def self_distillation(distill_weight: float = 1.0, temperature: float = 1.0) -> Objective:
    """Return Ordered Dropout with knowledge distillation.

    The loss is (1 - a) CE(student) + a KL(student, teacher, T) + CE(teacher). The default a = T = 1
    is the paper's final form. Where the sampled width is the widest, the divergence and its
    gradient are zero, and the second pass is skipped.
    """
    if not 0 <= distill_weight <= 1:
        raise UserError("must lie between 0 and 1", field="distill_weight", value=distill_weight)
    if not temperature > 0:
        raise UserError("must be above 0", field="temperature", value=temperature)

    def distilled_loss(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        teacher = logits_at(widest)
        teacher_loss = cross_entropy(teacher, target)
        if width == widest:
            return (2 - distill_weight) * teacher_loss
        student = logits_at(width)
        divergence = distillation_loss(student, teacher, target, temperature)
        loss = teacher_loss + distill_weight * divergence
        if distill_weight < 1:
            loss = loss + (1 - distill_weight) * cross_entropy(student, target)
        return loss

    return Objective(distilled_loss, widest_and_sampled)


def sampled_width_only(width: Width, widest: Width) -> tuple[Width, ...]:
    """Say that a step runs the sampled submodel alone."""
    return (width,)


def widest_and_sampled(width: Width, widest: Width) -> tuple[Width, ...]:
    """Say that a step runs the widest submodel, and the sampled one where it is another."""
    if width == widest:
        return (widest,)
    return (widest, width)
