"""Slow, literal versions of what the library does, to test against."""

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fjord.elastic.plan import UnitSelection, WidthPlan


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors.update(model.named_buffers())
    return tensors


def masks(model: nn.Module, plan: WidthPlan, kept: UnitSelection) -> dict[str, Tensor]:
    """Return 1 where a weight belongs to the submodel, else 0: the definition of a family."""
    result = {}
    for name, tensor in all_tensors(model).items():
        result[name] = torch.ones(tensor.shape, dtype=torch.float64)
    for family in plan.families:
        for unit in range(family.num_units):
            if unit not in kept[family.name].tolist():
                for (name, dim), rows in family.members.items():
                    for index in rows[unit].tolist():
                        result[name].select(dim, index).zero_()
    return result


def _normalise(x: Tensor, keep: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """Normalise over `dims`, counting only kept positions."""
    count = keep.expand(x.shape).sum(dims, keepdim=True).clamp(min=1)
    mean = (x * keep).sum(dims, keepdim=True) / count
    variance = (((x - mean) * keep) ** 2).sum(dims, keepdim=True) / count
    return (x - mean) / torch.sqrt(variance + eps)


def _layer_norm(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    keep = (weight != 0).to(x.dtype)
    dims = tuple(range(x.dim() - len(shape), x.dim()))
    return _normalise(x, keep, dims, eps) * weight + bias * keep


def _rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    keep = (weight != 0).to(x.dtype)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    square = (x * keep).square().sum(-1, keepdim=True) / keep.sum()
    return x / torch.sqrt(square + eps) * weight


def _group_norm(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    keep = (weight != 0).to(x.dtype)
    image = [1] * (x.dim() - 2)
    split = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    kept = keep.reshape(1, groups, -1, *image)
    dims = tuple(range(2, x.dim() + 1))
    normal = _normalise(split, kept, dims, eps).reshape(x.shape)
    column = (1, -1, *image)
    return normal * weight.reshape(column) + bias.reshape(column) * keep.reshape(column)


@contextlib.contextmanager
def norms_count_kept() -> Iterator[None]:
    """A dropped unit has weight exactly 0 in a norm: leave it out of the averages."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            mock.patch.object(F, "layer_norm", _layer_norm),
            mock.patch.object(F, "group_norm", _group_norm),
            mock.patch.object(F, "rms_norm", _rms_norm),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def masked_output(
    model: nn.Module, weights: dict[str, Tensor], mask: dict[str, Tensor], inputs: tuple[Any, ...]
) -> Any:
    """Run the full model with every dropped unit masked."""
    state = {}
    for name, weight in weights.items():
        state[name] = weight * mask[name] if weight.is_floating_point() else weight
    with norms_count_kept():
        return functional_call(model, state, inputs)


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every tensor values that no wrong slice can hide behind."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for name, tensor in all_tensors(model).items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                if name.endswith("running_var"):
                    tensor.copy_(noise.abs() + 0.5)
                elif tensor.dim() == 1:
                    tensor.copy_(1 + 0.3 * noise)
                else:
                    tensor.copy_(noise / max(1, tensor[0].numel()) ** 0.5)
    return model


def first_units(width: Fraction, units: int) -> int:
    """ceil(width * units), by counting."""
    return next(k for k in range(1, units + 1) if k >= width * units)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> bool:
    leaves_a = pytree.tree_leaves(a)
    leaves_b = pytree.tree_leaves(b)
    for x, y in zip(leaves_a, leaves_b, strict=True):
        if x.shape != y.shape:
            return False
        difference = float((x.detach() - y.detach()).abs().max())
        scale = max(1, float(y.detach().abs().max()))
        if not difference <= tolerance * scale:
            return False
    return True
