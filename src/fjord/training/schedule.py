"""The step size over the course of training: it falls by a factor at some milestones."""

from collections.abc import Iterable
from fractions import Fraction


def scheduled_lr(
    lr: float, index: int, *, total: int, milestones: Iterable[Fraction], decay: float
) -> float:
    """Return the step size of one round or epoch out of `total`.

    After each of the milestones, which are shares of the whole, it is multiplied by `decay`.

    >>> halfway = Fraction(1, 2)
    >>> [scheduled_lr(1.0, t, total=4, milestones=[halfway], decay=0.5) for t in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    passed = sum(index >= share * total for share in milestones)
    return lr * decay**passed
