"""Both losses of section 3.2, against the equations taken literally."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data.federated import IGNORED_TARGET
from fjord.federated.methods import find_method
from fjord.training.objective import cross_entropy, ordered_dropout, self_distillation

NARROW, WIDE = Fraction(2, 5), Fraction(1)


def literal(
    student: Tensor, teacher: Tensor, target: Tensor, alpha: float, temperature: float
) -> float:
    """(1 - a) CE(student) + a T^2 KL(teacher || student at T) + CE(teacher), by example."""
    total, count = 0.0, 0
    for s, t, y in zip(student.tolist(), teacher.tolist(), target.tolist(), strict=True):
        if y == IGNORED_TARGET:
            continue

        def soft(scores: list[float], at: float) -> list[float]:
            powers = [math.exp(v / at) for v in scores]
            return [p / sum(powers) for p in powers]

        ps, pt = soft(s, temperature), soft(t, temperature)
        kl = sum(b * math.log(b / a) for a, b in zip(ps, pt, strict=True))
        total += (
            -(1 - alpha) * math.log(soft(s, 1)[y])
            + alpha * temperature**2 * kl
            - math.log(soft(t, 1)[y])
        )
        count += 1
    return total / count


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.5, 1.0, 4.0]))
def test_distillation_is_the_equation(seed, alpha, temperature):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (
        torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    target = torch.randint(0, 4, (6,), generator=generator)
    target[seed % 6] = IGNORED_TARGET
    objective = self_distillation(alpha, temperature)
    found = objective({NARROW: student, WIDE: teacher}.__getitem__, target, NARROW, WIDE)
    assert float(found) == pytest.approx(
        literal(student, teacher, target, alpha, temperature), rel=1e-9
    )
    at_the_top = objective({WIDE: teacher}.__getitem__, target, WIDE, WIDE)
    assert float(at_the_top) == pytest.approx(
        literal(teacher, teacher, target, alpha, temperature), rel=1e-9
    )


def test_the_teacher_learns_from_the_label_alone():
    student, teacher = (torch.randn(5, 3, requires_grad=True) for _ in range(2))
    target = torch.tensor([0, 1, 2, 0, 1])
    self_distillation()(
        {NARROW: student, WIDE: teacher}.__getitem__, target, NARROW, WIDE
    ).backward()
    expected = torch.autograd.grad(cross_entropy(teacher, target), teacher)[0]
    assert torch.allclose(teacher.grad, expected)
    assert student.grad.abs().sum() > 0


def test_the_pass_of_the_student_is_skipped_where_it_is_the_teacher():
    ran = []

    def logits_at(width: Fraction) -> Tensor:
        ran.append(width)
        return torch.zeros(2, 3, requires_grad=True)

    self_distillation()(logits_at, torch.tensor([0, 1]), WIDE, WIDE)
    assert ran == [WIDE]


def test_plain_is_the_loss_of_the_sampled_width():
    scores = {NARROW: torch.randn(2, 7, 3), WIDE: torch.randn(2, 7, 3)}
    target = torch.randint(0, 3, (2, 7))
    found = ordered_dropout()(scores.__getitem__, target, NARROW, WIDE)
    assert torch.equal(
        found, torch.nn.functional.cross_entropy(scores[NARROW].flatten(0, 1), target.flatten())
    )


@pytest.mark.parametrize(
    "bad", [{"distill_weight": 1.5}, {"distill_weight": -0.1}, {"temperature": 0.0}]
)
def test_bad_settings_are_refused(bad):
    name = next(iter(bad))
    with pytest.raises(ValueError, match=name):
        self_distillation(**bad)


@pytest.mark.parametrize("objective", [ordered_dropout(), self_distillation(0.5)])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_an_objective_names_the_widths_that_its_steps_run(objective, width):
    ran = []

    def logits_at(asked):
        ran.append(asked)
        return torch.randn(3, 4)

    objective(logits_at, torch.tensor([0, 1, 2]), width, WIDE)
    assert tuple(ran) == objective.widths(width, WIDE)


def test_a_method_refuses_a_loss_that_does_not_say_which_widths_it_runs():
    with pytest.raises(UserError, match="must say which widths a step runs"):
        replace(find_method("fjord"), objective=lambda *step: torch.zeros(()))
