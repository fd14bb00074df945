"""The losses of section 3.2: plain Ordered Dropout, and self-distillation from the widest submodel.

Class scores stand in the last axis; targets equal to `IGNORED_TARGET` (padding) do not count.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.data.federated import IGNORED_TARGET

LogitsAt = Callable[[Width], Tensor]
Objective = Callable[[LogitsAt, Tensor, Width, Width], Tensor]
"""Maps (logits at a width, targets, the sampled width, the widest one) to a loss."""
LossFunction = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy over all targets that count; 0 where none does."""
    wanted = class_numbers(target)
    if bool((wanted == IGNORED_TARGET).all()):
        return 0.0 * logits.sum()
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), wanted, ignore_index=IGNORED_TARGET
    )


def class_numbers(target: Tensor) -> Tensor:
    """Return class numbers flat and in the type torch wants."""
    if target.is_floating_point():
        raise UserError(f"targets are {target.dtype}; class numbers must be whole")
    return target.reshape(-1).long()


def distillation_loss(
    student: Tensor, teacher: Tensor, target: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return T^2 * KL(teacher || student) at temperature T; the teacher is the target and gets no gradient."""
    counts = (target.reshape(-1) != IGNORED_TARGET).to(student.dtype)
    log_student = F.log_softmax(student.reshape(-1, student.shape[-1]) / temperature, dim=-1)
    log_teacher = F.log_softmax(
        teacher.detach().reshape(-1, teacher.shape[-1]) / temperature, dim=-1
    )
    each = F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1)
    return temperature**2 * (each * counts).sum() / counts.sum().clamp(min=1)


def ordered_dropout(loss: LossFunction = cross_entropy) -> Objective:
    """Return plain Ordered Dropout: the loss of the sampled submodel alone."""

    def objective(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        return loss(logits_at(width), target)

    return objective


def self_distillation(distill_weight: float = 1.0, temperature: float = 1.0) -> Objective:
    """Return Ordered Dropout with KD: (1 - a) CE(student) + a KL(student, teacher, T) + CE(teacher).

    The default a = T = 1 is the paper's final form. Where the sampled width is the widest, the
    divergence and its gradient are zero, and the second pass is skipped.
    """
    if not 0 <= distill_weight <= 1:
        raise UserError(f"distill_weight={distill_weight} must lie between 0 and 1")
    if not temperature > 0:
        raise UserError(f"temperature={temperature} must be above 0")

    def objective(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        teacher = logits_at(widest)
        taught = cross_entropy(teacher, target)
        if width == widest:
            return (2 - distill_weight) * taught
        student = logits_at(width)
        loss = taught + distill_weight * distillation_loss(student, teacher, target, temperature)
        return (
            loss + (1 - distill_weight) * cross_entropy(student, target)
            if distill_weight < 1
            else loss
        )

    return objective
