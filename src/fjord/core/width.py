"""Widths as exact fractions, and the spaces P they are sampled from by D_P (section 3.1)."""

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

ALLOWED_WIDTHS = "a fraction above 0 and at most 1, such as '2/5', '0.4' or '40%'"
SAMPLING_BITS = 53
"""How many random bits decide a draw; as many as a float's fraction has."""


def parse_width(value: WidthLike) -> Width:
    """Return the exact width meant by a fraction, an integer or a text.

    >>> parse_width("2/5") == parse_width("0.4") == parse_width("40%")
    True
    >>> parse_width("2")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fjord.core.errors.UserError: width '2' is not a fraction above 0 and at most 1, ...
    """
    if isinstance(value, float):
        fault = "is a float, which is not exact: write it as text, such as '2/5' or '0.4'"
        raise UserError(f"width {value!r} {fault}")
    try:
        width = _parse_fraction(value)
    except (ValueError, ZeroDivisionError, TypeError):
        raise UserError(f"width {value!r} is not {ALLOWED_WIDTHS}") from None
    if not 0 < width <= 1:
        raise UserError(f"width {value!r} is not {ALLOWED_WIDTHS}")
    return width


def _parse_fraction(value: WidthLike) -> Fraction:
    if isinstance(value, str) and value.strip().endswith("%"):
        percent = value.strip().removesuffix("%")
        return Fraction(percent) / 100
    return Fraction(value)


def _parse_weight(width: WidthLike, weight: WidthLike) -> Fraction:
    try:
        return _parse_fraction(weight)
    except (ValueError, ZeroDivisionError, TypeError):
        fault = f"probability {weight!r} of width {width} is not a number such as '1/4' or 3"
        raise UserError(fault) from None


def kept_units(width: Width, full: int, multiple: int = 1) -> int:
    """Return ceil(width * full), rounded up to a multiple but never above `full`.

    >>> kept_units(Fraction(3, 5), 10), kept_units(Fraction(1, 5), 64, multiple=8)
    (6, 16)
    """
    units = math.ceil(width * full)
    num_multiples = -(-units // multiple)  # rounded up
    return min(full, num_multiples * multiple)


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
            widths = _format_list(self.widths)
            raise UserError(f"widths {widths} must be distinct and in rising order")
        for width in self.widths:
            parse_width(width)
        probabilities = _format_list(self.probabilities)
        if len(self.probabilities) != len(self.widths) or min(self.probabilities) <= 0:
            raise UserError(f"probabilities {probabilities}: one above 0 for each width is needed")
        total = sum(self.probabilities)
        if total != 1:
            raise UserError(f"probabilities {probabilities} add up to {total}, not 1")

    @classmethod
    def of(cls, weights: Mapping[WidthLike, WidthLike | int] | Iterable[WidthLike]) -> Self:
        """Return the space of these widths: equally likely, or with the given relative weights."""
        if not isinstance(weights, Mapping):
            weights = dict.fromkeys(weights, 1)
        pairs = []
        for width, weight in weights.items():
            pairs.append((parse_width(width), _parse_weight(width, weight)))
        pairs.sort()
        total = sum(weight for _, weight in pairs) or Fraction(1)
        widths = tuple(width for width, _ in pairs)
        probabilities = tuple(weight / total for _, weight in pairs)
        return cls(widths, probabilities)

    @property
    def largest(self) -> Width:
        """The widest candidate, p_max."""
        return self.widths[-1]

    def up_to(self, ceiling: WidthLike) -> Self:
        """Return D_P conditioned on widths up to the ceiling."""
        limit = parse_width(ceiling)
        if limit not in self._conditioned_spaces:
            self._conditioned_spaces[limit] = self._condition_on(limit)
        return self._conditioned_spaces[limit]

    def _condition_on(self, limit: Width) -> Self:
        weights = {}
        for width, probability in zip(self.widths, self.probabilities, strict=True):
            if width <= limit:
                weights[width] = probability
        if not weights:
            raise UserError(f"ceiling {limit} is below the smallest width {self.widths[0]}")
        return type(self).of(weights)

    @cached_property
    def _conditioned_spaces(self) -> dict[Width, Self]:
        """The spaces of ceilings that were asked for before."""
        return {}

    def sample(self, rng: random.Random) -> Width:
        """Draw one width."""
        draw = rng.getrandbits(SAMPLING_BITS)
        return self.widths[bisect_right(self._thresholds, draw)]

    @cached_property
    def _thresholds(self) -> list[int]:
        """The draw from which on each width but the first is meant."""
        num_draws = 1 << SAMPLING_BITS
        ends = list(accumulate(self.probabilities))
        return [math.ceil(end * num_draws) for end in ends[:-1]]

    def __repr__(self) -> str:
        texts = []
        for width, probability in zip(self.widths, self.probabilities, strict=True):
            texts.append(f"{width}: {probability}")
        return f"WidthSpace({', '.join(texts)})"


def as_space(value: WidthSpace | Iterable[WidthLike]) -> WidthSpace:
    """Return a width space, made from a list of equally likely widths if need be."""
    if isinstance(value, WidthSpace):
        return value
    return WidthSpace.of(value)


def uniform_widths(k: int) -> WidthSpace:
    """Return the paper's uniform-k: P = {1/k, 2/k, ..., 1}, equally likely."""
    if type(k) is not int or k < 1:
        raise UserError(f"uniform-{k}: k must be a whole number of at least 1")
    widths = [Fraction(i, k) for i in range(1, k + 1)]
    return WidthSpace.of(widths)


def parse_space(text: str) -> WidthSpace:
    """Return the space meant by uniform-k or a list of widths.

    >>> parse_space("uniform-2") == parse_space("1/2,1")
    True
    """
    name, _, count = text.partition("-")
    if name == "uniform" and count.isdigit():
        return uniform_widths(int(count))
    widths = [parse_width(part) for part in text.split(",")]
    return WidthSpace.of(widths)


def _format_list(values: Iterable[Fraction]) -> str:
    return "(" + ", ".join(map(str, values)) + ")"
