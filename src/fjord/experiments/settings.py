"""Settings, each declared once as a field of a frozen dataclass: default, kind, help, effect.

Why `dataclasses.field(metadata=...)` and no library: experiments are plain frozen values that
recipes change with `replace`, and a message names the one setting that is wrong. pydantic would
be a new dependency of the core, a slower import and many-line errors; tyro and jsonargparse
make an option of every field, where `--set key=value` is one that reads the same declaration.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar, get_args

from fjord.core.errors import SettingError, suggest_name
from fjord.core.width import WidthSpace
from fjord.data.federated import FederatedData
from fjord.experiments.value_kinds import ValueKind
from fjord.federated.methods import Method

Settings = TypeVar("Settings", bound=Any)
"""A dataclass of settings: a federated or a centralised experiment."""
MakeData = Callable[[int], FederatedData]


@dataclass(frozen=True)
class SettingInfo:
    """What is declared about a setting beside its default."""

    help: str
    kind: ValueKind | None = None
    """None: a part that a recipe makes, which no text can set."""
    affects_results: bool = True
    """Whether runs that differ in it are different experiments."""


def setting(default: Any, kind: ValueKind, help: str, *, affects_results: bool = True) -> Any:
    """Declare a setting: a field of an experiment that `--set key=value` can change.

    >>> from fjord.experiments.value_kinds import COUNT
    >>> @dataclass(frozen=True)
    ... class Small:
    ...     rounds: int = setting(5, COUNT, "Rounds of training.")
    ...     def __post_init__(self): accept_settings(self)
    >>> set_setting(Small(), "rounds", "7")
    Small(rounds=7)
    """
    info = SettingInfo(help, kind, affects_results)
    return field(default=default, metadata={"setting": info})


def recipe_part(help: str) -> dict[str, SettingInfo]:
    """Return the metadata of a field that a recipe gives and no text can set."""
    return {"setting": SettingInfo(help)}


def declared_settings(record: Any) -> dict[str, SettingInfo]:
    """Return what is declared about each setting of a dataclass, or of a value of it."""
    declared = {}
    for one in fields(record):
        if "setting" in one.metadata:
            declared[one.name] = one.metadata["setting"]
    return declared


def accept_settings(record: Any) -> None:
    """Check all settings of a frozen dataclass, and put them into their exact form."""
    for name, info in declared_settings(record).items():
        if info.kind is not None:
            value = info.kind.accept(name, getattr(record, name))
            object.__setattr__(record, name, value)


def free_settings(record: Any) -> set[str]:
    """Return the settings that do not affect results."""
    names = set()
    for name, info in declared_settings(record).items():
        if not info.affects_results:
            names.add(name)
    return names


def settings_as_json(record: Any) -> dict[str, Any]:
    """Return all fields of a dataclass as plain data, functions by name."""
    plain = {}
    for one in fields(record):
        plain[one.name] = _plain_value(getattr(record, one.name))
    return plain


def default_settings(kind: type) -> dict[str, Any]:
    """Return the defaults of a dataclass as plain data.

    A run that is older than a setting had the setting's default.
    """
    defaults = {}
    for one in fields(kind):
        if one.default is not MISSING:
            defaults[one.name] = _plain_value(one.default)
    return defaults


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, Method):
        return value.name
    if isinstance(value, partial):
        return _plain_partial(value)
    if isinstance(value, Fraction | WidthSpace | PurePath) or is_dataclass(value):
        return str(value)
    return getattr(value, "__qualname__", type(value).__qualname__)  # never an address in memory


def _plain_partial(made: partial[Any]) -> dict[str, Any]:
    """Return a function with some of its arguments, defaults included; the seed is the run's."""
    bound = inspect.signature(made.func).bind_partial(*made.args, **made.keywords)
    bound.apply_defaults()
    plain = {"function": _plain_value(made.func)}
    for name, value in bound.arguments.items():
        if name != "seed":
            plain[name] = _plain_value(value)
    return plain


def set_setting(experiment: Settings, key: str, text: str) -> Settings:
    """Return an experiment with one setting changed to the value that a text means.

    `data.key` is an option of the function that makes its data.
    """
    if key.startswith("data."):
        data = _set_data_option(experiment.data, key.removeprefix("data."), text)
        return replace(experiment, data=data)
    kinds = _settable_kinds(experiment)
    if key not in kinds:
        known = ", ".join(kinds)
        message = f"is not a setting{suggest_name(key, kinds)}; known: {known}, data.OPTION"
        raise SettingError(message, field=key, value=text)
    value = kinds[key].read(key, text)
    return replace(experiment, **{key: value})


def _settable_kinds(experiment: Any) -> dict[str, ValueKind]:
    kinds = {}
    for name, info in declared_settings(experiment).items():
        if info.kind is not None:
            kinds[name] = info.kind
    return kinds


def _set_data_option(data: MakeData, key: str, text: str) -> MakeData:
    """Return a function of the seed that makes data, with one of its other arguments changed."""
    made = partial(data)  # of a partial: the same function and arguments
    signature = inspect.signature(made.func)
    bound = signature.bind_partial(*made.args, **made.keywords)
    arguments = bound.arguments
    names = list(signature.parameters)
    seed_position = len(made.args)  # the first argument that is not given yet
    del names[seed_position : seed_position + 1]
    if key not in names:
        known = ", ".join(names) or "none"
        message = f"is not an option of the recipe's data{suggest_name(key, names)}; known: {known}"
        raise SettingError(message, field=f"data.{key}", value=text)
    arguments[key] = _read_option(key, signature.parameters[key].annotation, text)
    positional = [arguments.pop(name) for name in names[:seed_position]]
    return partial(made.func, *positional, **arguments)


def _read_option(key: str, annotation: Any, text: str) -> Any:
    """Return an option of the data in the type of its annotation, such as int | None."""
    types = (annotation, *get_args(annotation))
    if text == "none" and type(None) in types:
        return None
    for number_type in (int, float, Fraction):
        if number_type in types:
            return _read_number(key, number_type, text)
    return text


def _read_number(key: str, number_type: type[int | float | Fraction], text: str) -> Any:
    try:
        return number_type(text)
    except (ValueError, ZeroDivisionError):
        wanted = "a whole number" if number_type is int else "a number"
        raise SettingError(f"must be {wanted}", field=f"data.{key}", value=text) from None
