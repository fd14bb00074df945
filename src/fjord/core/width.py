"""Widths as exact fractions, and the spaces P with distribution D_P they are sampled from (section 3.1)."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Self

from fjord.core.errors import UserError

Width = Fraction
WidthLike = Fraction | int | str
Widths = WidthLike | Mapping[str, WidthLike]
"""One width for every layer, or layer patterns with widths of their own (the paper's p_l)."""

ALLOWED = "a fraction above 0 and at most 1, such as '2/5', '0.4' or '40%'"


def parse_width(value: WidthLike) -> Width:
    """Return the exact width meant by a fraction, an integer or a text.

    >>> parse_width("2/5") == parse_width("0.4") == parse_width("40%")
    True
    >>> parse_width("0")
    Traceback (most recent call last):
    fjord.core.errors.UserError: width '0' is not a fraction above 0 and at most 1, such as '2/5', '0.4' or '40%'
    """
    if isinstance(value, float):
        raise UserError(
            f"width {value!r} is a float, which is not exact: write it as text, such as '2/5' or '0.4'"
        )
    try:
        width = _fraction(value)
    except (ValueError, ZeroDivisionError, TypeError):
        raise UserError(f"width {value!r} is not {ALLOWED}") from None
    if not 0 < width <= 1:
        raise UserError(f"width {value!r} is not {ALLOWED}")
    return width


def _fraction(value: WidthLike) -> Fraction:
    if isinstance(value, str) and value.strip().endswith("%"):
        return Fraction(value.strip()[:-1]) / 100
    return Fraction(value)


def _weight(width: WidthLike, weight: WidthLike) -> Fraction:
    try:
        return _fraction(weight)
    except (ValueError, ZeroDivisionError, TypeError):
        raise UserError(
            f"probability {weight!r} of width {width} is not a number such as '1/4' or 3"
        ) from None


def kept_units(width: Width, full: int, multiple: int = 1) -> int:
    """Return ceil(width * full), rounded up to a multiple but never above `full`.

    >>> kept_units(Fraction(3, 5), 10), kept_units(Fraction(1, 5), 64, multiple=8)
    (6, 16)
    """
    kept = math.ceil(width * full)
    return min(full, -(-kept // multiple) * multiple)


@dataclass(frozen=True)
class WidthSpace:
    """The candidate widths P in rising order, each with its probability under D_P.

    >>> uniform_widths(5).up_to("2/5")
    WidthSpace(1/5: 1/2, 2/5: 1/2)
    """

    widths: tuple[Width, ...]
    probabilities: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if not self.widths or list(self.widths) != sorted(set(self.widths)):
            raise UserError(f"widths {_listed(self.widths)} must be distinct and in rising order")
        for width in self.widths:
            parse_width(width)
        if len(self.probabilities) != len(self.widths) or min(self.probabilities) <= 0:
            raise UserError(
                f"probabilities {_listed(self.probabilities)}: one above 0 for each width is needed"
            )
        if sum(self.probabilities) != 1:
            raise UserError(
                f"probabilities {_listed(self.probabilities)} add up to {sum(self.probabilities)}, not 1"
            )

    @classmethod
    def of(cls, weights: Mapping[WidthLike, WidthLike | int] | Iterable[WidthLike]) -> Self:
        """Return the space of these widths: equally likely, or with the given relative weights."""
        if not isinstance(weights, Mapping):
            weights = dict.fromkeys(weights, 1)
        exact = sorted(
            (parse_width(width), _weight(width, weight)) for width, weight in weights.items()
        )
        total = sum(weight for _, weight in exact) or Fraction(1)
        return cls(tuple(w for w, _ in exact), tuple(weight / total for _, weight in exact))

    @property
    def largest(self) -> Width:
        """The widest candidate, p_max."""
        return self.widths[-1]

    def up_to(self, ceiling: WidthLike) -> Self:
        """Return D_P conditioned on widths up to the ceiling."""
        limit = parse_width(ceiling)
        if limit not in self._conditioned:
            held = {
                w: p for w, p in zip(self.widths, self.probabilities, strict=True) if w <= limit
            }
            if not held:
                raise UserError(f"ceiling {limit} is below the smallest width {self.widths[0]}")
            self._conditioned[limit] = type(self).of(held)
        return self._conditioned[limit]

    @cached_property
    def _conditioned(self) -> dict[Width, Self]:
        return {}

    def sample(self, rng: random.Random) -> Width:
        """Draw one width."""
        return self.widths[bisect_right(self._marks, rng.getrandbits(53))]

    @cached_property
    def _marks(self) -> list[int]:
        """Where, out of 2**53, each width gives way to the next."""
        return [math.ceil(end * (1 << 53)) for end in accumulate(self.probabilities)][:-1]

    def __repr__(self) -> str:
        pairs = zip(self.widths, self.probabilities, strict=True)
        return f"WidthSpace({', '.join(f'{w}: {p}' for w, p in pairs)})"


def as_space(value: WidthSpace | Iterable[WidthLike]) -> WidthSpace:
    """Return a width space, made from a list of equally likely widths if need be."""
    return value if isinstance(value, WidthSpace) else WidthSpace.of(value)


def uniform_widths(k: int) -> WidthSpace:
    """Return the paper's uniform-k: P = {1/k, 2/k, ..., 1}, equally likely."""
    if type(k) is not int or k < 1:
        raise UserError(f"uniform-{k}: k must be a whole number of at least 1")
    return WidthSpace.of([Fraction(i, k) for i in range(1, k + 1)])


def parse_space(text: str) -> WidthSpace:
    """Return the space meant by uniform-k or a list of widths.

    >>> parse_space("uniform-2") == parse_space("1/2,1")
    True
    """
    name, _, count = text.partition("-")
    if name == "uniform" and count.isdigit():
        return uniform_widths(int(count))
    return WidthSpace.of([parse_width(part) for part in text.split(",")])


def _listed(values: Iterable[Fraction]) -> str:
    return "(" + ", ".join(map(str, values)) + ")"
