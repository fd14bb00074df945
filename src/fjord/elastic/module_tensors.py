"""The tensors of a module by name, and copies of a module around other tensors."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tied tensor has its first name only."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors.update(model.named_buffers())
    return tensors


def all_named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tied tensor has all of its names."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    return tensors


def tied_names(model: nn.Module) -> dict[str, str]:
    """Map every name of every tensor to the first name of the same tensor.

    >>> layer = nn.Linear(3, 3, bias=False)
    >>> tied_names(nn.ModuleDict({"input": layer, "output": layer}))
    {'input.weight': 'input.weight', 'output.weight': 'input.weight'}
    """
    first_names: dict[int, str] = {}
    result: dict[str, str] = {}
    for name, tensor in all_named_tensors(model).items():
        result[name] = first_names.setdefault(id(tensor), name)
    return result


def copy_module(model: nn.Module, replacements: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a model with other tensors in place of its own.

    Tensors that modules cached in earlier forward passes are detached: `deepcopy` refuses others.
    """
    memo: dict[int, Any] = {}
    for name, tensor in named_tensors(model).items():
        memo[id(tensor)] = replacements[name]
    for module in model.modules():
        for value in _public_values(module):
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    return copy.deepcopy(model, memo)


def _public_values(module: nn.Module) -> list[Any]:
    """Return the values of a module's attributes, those inside containers too."""
    attributes = {}
    for name, value in vars(module).items():
        if not name.startswith("_"):
            attributes[name] = value
    return pytree.tree_leaves(attributes)


def fresh_copy(model: nn.Module) -> nn.Module:
    """Return a copy that shares all tensors: a forward may fill caches, which must not stay."""
    return copy_module(model, named_tensors(model))


def meta_tensor_like(tensor: Tensor) -> Tensor:
    """Return a tensor of the same kind on the meta device, where it takes no memory."""
    meta = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(meta, tensor.requires_grad)
    return meta


def without_weights(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose tensors take no memory."""
    placeholders = {}
    for name, tensor in named_tensors(model).items():
        placeholders[name] = meta_tensor_like(tensor)
    return copy_module(model, placeholders)
