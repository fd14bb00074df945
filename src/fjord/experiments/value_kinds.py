"""Kinds of values that settings have: how text is read, what a value becomes, and what is allowed.

A kind refuses a value with one line that says what is allowed:

>>> COUNT.accept("workers", 2), COUNT.read("workers", "2")
(2, 2)
>>> COUNT.accept("workers", 0)
Traceback (most recent call last):
fjord.core.errors.SettingError: workers=0 must be a whole number of at least 1
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from fjord.core.errors import SettingError, UserError, suggest_name
from fjord.core.width import as_space, parse_space

FILE_SUFFIXES = (".csv", ".json")


@dataclass(frozen=True)
class ValueKind:
    """What a setting may be."""

    allowed: str
    """In words, as they follow "must be"."""
    parse: Callable[[str], Any] = str
    """Reads what was typed; raises ValueError where it cannot."""
    convert: Callable[[Any], Any] | None = None
    """Makes a value exact, such as a list a tuple; raises ValueError where it cannot."""
    check: Callable[[Any], bool] | None = None
    """Says whether a converted value is allowed."""
    optional: bool = False
    """Whether None is allowed, typed as `none`."""
    choices: Collection[str] = ()
    """The names of which a mistyped one is meant."""
    names_file: bool = False
    """Whether text with the suffix of a table is the path of a file."""

    def read(self, name: str, text: str) -> Any:
        """Return the value that was typed for a setting."""
        if self.optional and text == "none":
            return None
        if self.names_file and text.endswith(FILE_SUFFIXES):
            return str(Path(text).resolve())  # the same file wherever the run is resumed from
        try:
            return self.parse(text)
        except UserError as error:
            raise _explained_error(error, name, text) from error
        except (ValueError, ZeroDivisionError):
            raise self.refusal(name, text) from None

    def accept(self, name: str, value: Any) -> Any:
        """Return a setting's value in its exact form, or refuse it."""
        if self.optional and value is None:
            return None
        try:
            converted = self.convert(value) if self.convert else value
            fine = self.check is None or self.check(converted)
        except UserError as error:
            raise _explained_error(error, name, value) from error
        except (ValueError, ZeroDivisionError, TypeError):
            fine = False
        if not fine:
            raise self.refusal(name, value)
        return converted

    def refusal(self, name: str, value: Any) -> SettingError:
        """Return the error for a value that is not allowed."""
        message = f"must be {self.allowed}"
        if self.optional:
            message += ", or none"
        if isinstance(value, str):
            message += suggest_name(value, self.choices)
        return SettingError(message, field=name, value=_shown_value(value))


def _explained_error(error: UserError, name: str, value: Any) -> SettingError:
    """Return the error of a conversion as one about the setting."""
    if error.field == name:
        return SettingError(error.message, field=name, value=_shown_value(value))
    return SettingError(f"is not allowed: {error}", field=name, value=_shown_value(value))


def _shown_value(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return value


def choice_of(names: Collection[str], *, other: type | None = None) -> ValueKind:
    """Return the kind of a name out of some, or of a value of another type than text.

    >>> choice_of(["layers", "shared"]).accept("norms", "shard")
    Traceback (most recent call last):
    fjord.core.errors.SettingError: norms=shard must be layers or shared (did you mean shared?)
    """

    def is_choice(value: Any) -> bool:
        if isinstance(value, str):
            return value in names
        return other is not None and isinstance(value, other)

    return ValueKind(_listed_names(names), check=is_choice, choices=names)


def _listed_names(names: Collection[str]) -> str:
    """Return names as people list them; many are introduced by "one of".

    >>> _listed_names(["a", "b"]), _listed_names(["a", "b", "c"]), _listed_names("abcd")
    ('a or b', 'a, b or c', 'one of a, b, c, d')
    """
    *first, last = names
    if len(first) > 2:
        return f"one of {', '.join(names)}"
    return f"{', '.join(first)} or {last}"


def _is_whole(value: Any) -> bool:
    return type(value) is int  # True and False are not meant


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value >= 1


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_positive(value: Any) -> bool:
    return 0 < value < math.inf


def _is_not_negative(value: Any) -> bool:
    return 0 <= value < math.inf


def _is_below_one(value: Any) -> bool:
    return 0 <= value < 1


def _is_share(value: Fraction) -> bool:
    return 0 < value <= 1


def _is_share_or_zero(value: Fraction) -> bool:
    return 0 <= value <= 1


def _are_shares(values: Iterable[Fraction]) -> bool:
    return all(map(_is_share, values))


def _parse_flag(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _split_text(text: str) -> tuple[str, ...]:
    """Return the parts between commas; no text has none."""
    return tuple(filter(None, text.split(",")))


def _as_fraction(value: Any) -> Fraction:
    return Fraction(str(value))  # through text: 0.1 is 1/10


def _as_fractions(values: Iterable[Any]) -> tuple[Fraction, ...]:
    return tuple(map(_as_fraction, values))


def as_names(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return names as a tuple; a text is one name."""
    if isinstance(value, str):
        return (value,)
    return tuple(value)


WHOLE_NUMBER = ValueKind("a whole number", parse=int, check=_is_whole)
COUNT = ValueKind("a whole number of at least 1", parse=int, check=_is_count)
POSITIVE_NUMBER = ValueKind("a number above 0", parse=float, check=_is_positive)
NUMBER_FROM_ZERO = ValueKind("a number of at least 0", parse=float, check=_is_not_negative)
NUMBER_BELOW_ONE = ValueKind("a number of at least 0 and below 1", parse=float, check=_is_below_one)
SHARE = ValueKind(
    "a number above 0 and at most 1, such as 1/4", convert=_as_fraction, check=_is_share
)
SHARE_OR_ZERO = ValueKind(
    "a number of at least 0 and at most 1, such as 1/4",
    convert=_as_fraction,
    check=_is_share_or_zero,
)
MILESTONES = ValueKind(
    "shares of the training, such as 1/2,3/4",
    parse=_split_text,
    convert=_as_fractions,
    check=_are_shares,
)
FLAG = ValueKind("true or false", parse=_parse_flag, check=_is_flag)
NAMES = ValueKind("names with commas between them", parse=_split_text, convert=as_names)
WIDTH_SPACE = ValueKind("uniform-k, or widths such as 1/2,1", parse=parse_space, convert=as_space)
OPTIONAL_COUNT = replace(COUNT, optional=True)
OPTIONAL_NUMBER = replace(POSITIVE_NUMBER, optional=True)
NORMS = choice_of(("layers", "statistics", "shared"))
METRIC = choice_of(("accuracy", "perplexity"))
