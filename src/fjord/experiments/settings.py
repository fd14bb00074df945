"""Settings, the fields of a frozen dataclass: what is allowed, as plain data, and changed by `--set key=text`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar, get_args

from fjord.core.errors import UserError
from fjord.core.width import WidthSpace, parse_space
from fjord.data.federated import FederatedData
from fjord.federated.methods import Method

Setting = TypeVar("Setting", bound=Any)
"""A dataclass of settings: an experiment, or training on one place."""


class SettingError(UserError):
    """What is wrong with a setting of an experiment; `field` is its name."""


def check_field(record: Any, name: str, fine: Callable[[Any], bool], allowed: str) -> None:
    """Refuse a setting that is not fine."""
    value = getattr(record, name)
    if not fine(value):
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        raise UserError(f"{name}={shown} must be {allowed}")


def settings_as_json(record: Any) -> dict[str, Any]:
    """Return all fields of a dataclass as plain data, functions by name."""
    return {f.name: _plain(getattr(record, f.name)) for f in fields(record)}


def default_settings(kind: type) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields as plain data: what a run had that is older than a setting."""
    return {f.name: _plain(f.default) for f in fields(kind) if f.default is not MISSING}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, Method):
        return value.name
    if isinstance(value, partial):
        given = inspect.signature(value.func).bind_partial(*value.args, **value.keywords)
        given.apply_defaults()
        return {
            "function": _plain(value.func),
            **{k: _plain(v) for k, v in given.arguments.items() if k != "seed"},
        }
    if isinstance(value, Fraction | WidthSpace | PurePath) or is_dataclass(value):
        return str(value)
    return getattr(value, "__qualname__", type(value).__qualname__)  # never an address in memory


def set_setting(experiment: Setting, key: str, text: str) -> Setting:
    """Return the experiment after `--set key=text`, in the field's own type; `data.key` is an option of its data."""
    if key.startswith("data."):
        return replace(
            experiment, data=_set_option(experiment.data, key.removeprefix("data."), text)
        )
    known = {f.name: f.type for f in fields(experiment)}
    if key not in known or key in ("name", "model", "data", "devices"):
        settable = ", ".join(k for k in known if k not in ("name", "model", "data", "devices"))
        raise UserError(f"--set {key}: there is no such setting; known: {settable}, data.OPTION")
    try:
        value = _parsed(key, known[key], text)
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"--set {key}={text}: {error}") from None
    return replace(experiment, **{key: value})


def _set_option(
    data: Callable[[int], FederatedData], key: str, text: str
) -> Callable[[int], FederatedData]:
    """Return a function of the seed that makes data, with one of its other arguments changed."""
    made = data if isinstance(data, partial) else partial(data)
    signature = inspect.signature(made.func)
    options = signature.bind_partial(*made.args, **made.keywords).arguments
    seed = len(made.args)  # the place of the first argument that is not given yet
    known = [name for i, name in enumerate(signature.parameters) if i != seed]
    if key not in known:
        raise UserError(
            f"--set data.{key}: the recipe's data has no such option; it has: {', '.join(known) or 'none'}"
        )
    kind = signature.parameters[key].annotation
    kinds = [
        k for k in (int, float, Fraction) if k in (kind, *get_args(kind))
    ]  # such as int | None
    try:
        none = text == "none" and type(None) in get_args(kind)
        options[key] = None if none else kinds[0](text) if kinds else text
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"--set data.{key}={text}: {error}") from None
    first = [options.pop(name) for name in known[:seed]]
    return partial(made.func, *first, **options)


def _parsed(key: str, kind: object, text: str) -> Any:
    if key == "widths":
        return parse_space(text)
    if key in ("freeze", "log"):
        return tuple(part for part in text.split(",") if part)
    if key == "milestones":
        return tuple(Fraction(part) for part in text.split(",") if part)
    if key.startswith("max_"):
        return None if text == "none" else int(text)
    if key == "server_lr":
        return None if text == "none" else float(text)
    if key in ("clock", "deadline", "load") and text == "none":
        return None
    if key in ("tiers", "clock", "load") and text.endswith((".json", ".csv")):
        return str(Path(text).resolve())  # the same file wherever the run is resumed from
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UserError("allowed: true or false")
        return text.lower() == "true"
    return kind(text) if kind in (int, float, Fraction) else text
