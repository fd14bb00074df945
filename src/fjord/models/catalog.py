"""Models by name: the paper's three with what each needs, or a user's own `module:function`."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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


def _resnet_entry() -> CatalogEntry:
    model = cifar_resnet18()
    images = torch.randn(2, 3, 32, 32)
    return CatalogEntry(model, (images,))


def _cnn_entry() -> CatalogEntry:
    model = femnist_cnn()
    images = torch.randn(2, 1, 28, 28)
    return CatalogEntry(model, (images,))


def _rnn_entry() -> CatalogEntry:
    model = shakespeare_rnn()
    characters = torch.randint(0, 90, (2, 1))
    return CatalogEntry(model, (characters,), freeze=("embedding",))


PAPER_MODELS: dict[str, Callable[[], CatalogEntry]] = {
    "resnet18": _resnet_entry,
    "cnn": _cnn_entry,
    "rnn": _rnn_entry,
}


def find_model(name: str, shape: str | None = None) -> CatalogEntry:
    """Return a paper model by name, or what a user's `module:function` returns.

    The function returns a module, or a pair (module, example inputs); `shape` such as "2x3x32x32"
    gives the example where it returns only a module.
    """
    if name in PAPER_MODELS:
        entry = PAPER_MODELS[name]()
        if shape is None:
            return entry
        inputs = example_inputs(shape, entry.inputs[0].dtype)
        return replace(entry, inputs=(inputs,))
    module, colon, function = name.partition(":")
    if not colon:
        listed = ", ".join(PAPER_MODELS)
        fault = f"is neither one of {listed} nor of the form module:function"
        raise UserError(f"model {name!r} {fault}")
    make_model = _import_function(module, function, name)
    return make_entry(make_model(), name, shape)


def make_entry(made: Any, name: str, shape: str | None = None) -> CatalogEntry:
    """Return the result of a user's function as an entry.

    That is a module or a pair (module, example inputs).
    """
    model = made
    inputs = None
    if isinstance(made, tuple):
        model, inputs = made
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model {name!r}: the function returned {kind}, not a torch module")
    if shape is not None:
        inputs = example_inputs(shape)
    if inputs is None:
        fault = f"is needed for the model {name!r}, which comes without example inputs"
        hint = "give a shape such as 2x3x32x32, or return a pair (model, example inputs)"
        raise UserError(f"{fault}: {hint}", field="input")
    if isinstance(inputs, Tensor):
        return CatalogEntry(model, (inputs,))
    return CatalogEntry(model, tuple(inputs))


def _import_function(
    module: str,
    function: str,
    name: str,
) -> Callable[[], Any]:
    sys.path.insert(0, "")  # the user's own file in the current folder
    try:
        result = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"model {name!r}: {error}") from error
    finally:
        sys.path.remove("")
    assert callable(result)
    return result


def example_inputs(shape: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return a batch of a shape such as "2x3x32x32"; "2x80:int64" names its type as well.

    >>> example_inputs("2x80:int64").dtype
    torch.int64
    """
    sizes_text, colon, type_name = shape.partition(":")
    chosen_type: Any = dtype or torch.get_default_dtype()
    if colon:
        chosen_type = getattr(torch, type_name, None)
    try:
        sizes = [int(size) for size in sizes_text.lower().split("x")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or not isinstance(chosen_type, torch.dtype):
        allowed = "a shape such as 2x3x32x32, or with its type 2x80:int64"
        raise UserError(f"input {shape!r} is not {allowed}")
    if chosen_type.is_floating_point:
        return torch.randn(sizes, dtype=chosen_type)
    return torch.zeros(sizes, dtype=chosen_type)
