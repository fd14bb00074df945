"""Models by name: the paper's three with what each needs, or a user's own `module:function`."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.models import cifar_resnet18, femnist_cnn, shakespeare_rnn


@dataclass(frozen=True)
class CatalogEntry:
    """A model with example inputs and the layers that stay whole."""

    model: nn.Module
    inputs: tuple[Any, ...]
    freeze: tuple[str, ...] = ()


def _resnet18() -> CatalogEntry:
    return CatalogEntry(cifar_resnet18(), (torch.randn(2, 3, 32, 32),))


def _cnn() -> CatalogEntry:
    return CatalogEntry(femnist_cnn(), (torch.randn(2, 1, 28, 28),))


def _rnn() -> CatalogEntry:
    return CatalogEntry(shakespeare_rnn(), (torch.randint(0, 90, (2, 1)),), freeze=("embedding",))


PAPER_MODELS: dict[str, Callable[[], CatalogEntry]] = {
    "resnet18": _resnet18,
    "cnn": _cnn,
    "rnn": _rnn,
}


def find_model(name: str, shape: str | None = None) -> CatalogEntry:
    """Return a paper model by name, or what a user's `module:function` returns.

    The function returns a module, or a pair (module, example inputs); `shape` such as "2x3x32x32"
    gives the example where it returns only a module.
    """
    if name in PAPER_MODELS:
        entry = PAPER_MODELS[name]()
        return (
            entry
            if shape is None
            else CatalogEntry(
                entry.model, (example_inputs(shape, entry.inputs[0].dtype),), entry.freeze
            )
        )
    module, colon, function = name.partition(":")
    if not colon:
        raise UserError(
            f"model {name!r} is neither one of {', '.join(PAPER_MODELS)} nor of the form module:function"
        )
    return make_entry(_import(module, function, name)(), name, shape)


def make_entry(made: Any, name: str, shape: str | None = None) -> CatalogEntry:
    """Return what a user's function made, a module or a pair (module, example inputs), as an entry."""
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model {name!r}: the function returned {type(model).__name__}, not a torch module"
        )
    if shape is not None:
        inputs = example_inputs(shape)
    if inputs is None:
        raise UserError(
            f"model {name!r}: give --input SHAPE, or return a pair (model, example inputs)"
        )
    return CatalogEntry(model, (inputs,) if isinstance(inputs, Tensor) else tuple(inputs))


def _import(module: str, function: str, name: str) -> Callable[[], Any]:
    sys.path.insert(0, "")  # the user's own file in the current folder
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"model {name!r}: {error}") from error
    finally:
        sys.path.remove("")
    assert callable(found)
    return found


def example_inputs(shape: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return a batch of a shape such as "2x3x32x32"; "2x80:int64" names its type as well.

    >>> example_inputs("2x80:int64").dtype
    torch.int64
    """
    sizes, colon, kind = shape.partition(":")
    chosen = getattr(torch, kind, None) if colon else dtype or torch.get_default_dtype()
    try:
        numbers = [int(n) for n in sizes.lower().split("x")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or not isinstance(chosen, torch.dtype):
        raise UserError(
            f"input {shape!r} is not a shape such as 2x3x32x32, or with its type 2x80:int64"
        )
    return (
        torch.randn(numbers, dtype=chosen)
        if chosen.is_floating_point
        else torch.zeros(numbers, dtype=chosen)
    )
