"""BatchNorm per width (appendix, CIFAR10): which tensors each width has for itself.

A tensor that is stored once per width has that width in its key (see `TensorKey`); all others are
stored once, at full size.
"""

import warnings
from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace
from fjord.elastic.indexing import AxisIndices, is_leading, relative_indices
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.tensor_key import TensorKey

BatchNormMode = Literal["layers", "statistics", "shared"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class StoredSlice(NamedTuple):
    """The part of a stored tensor that a submodel uses."""

    key: str
    indices: AxisIndices


def batchnorm_tensors(model: nn.Module, norms: BatchNormMode) -> set[str]:
    """Return the names of the tensors that are stored once per width."""
    if norms == "shared":
        return set()
    names = set()
    for path, module in batchnorm_layers(model).items():
        for leaf in _local_tensors(module):
            if norms == "layers" or leaf in STATISTICS:
                name = f"{path}.{leaf}"
                names.add(name.removeprefix("."))  # the model itself has no path
    return names


def batchnorm_layers(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Return the BatchNorm layers of a model by path."""
    layers = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            layers[path] = module
    return layers


def _local_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own parameters and buffers, without those of modules below it."""
    tensors = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def stored_slices(
    plan: WidthPlan,
    space: WidthSpace,
    per_width: set[str],
    widths: dict[str, Width],
    selection: UnitSelection,
    *,
    calibrated: bool = False,
) -> dict[str, StoredSlice]:
    """Return for each tensor of a submodel the stored tensor and the indices to take from it.

    `per_width` names the tensors that are stored once per width. There is a warning if a width was
    not trained, unless the submodel is `calibrated`: then its BatchNorm statistics are elsewhere.
    """
    stored_widths = _stored_widths(plan, space, per_width, widths, selection)
    if per_width and not calibrated:
        _warn_of_untrained(widths, space)
    stored_indices = {}
    for width in set(stored_widths.values()):
        stored_indices[width] = plan.kept_indices(plan.leading_units(width))
    slices: dict[str, StoredSlice] = {}
    for name, indices in plan.kept_indices(selection).items():
        if name not in per_width:
            slices[name] = StoredSlice(name, indices)
            continue
        width = stored_widths[name]
        key = str(TensorKey(name, width))
        stored = stored_indices[width][name]
        slices[name] = StoredSlice(key, relative_indices(indices, stored))
    return slices


def untrained_widths(widths: Mapping[str, Width], space: WidthSpace) -> str:
    """Return the widths that the model was not trained at, as text; empty if there are none."""
    untrained = set(widths.values()) - set(space.widths)
    return ", ".join(map(str, sorted(untrained)))


def _warn_of_untrained(widths: dict[str, Width], space: WidthSpace) -> None:
    """Warn of widths that have no BatchNorm layers of their own."""
    untrained = untrained_widths(widths, space)
    if not untrained:
        return
    trained = ", ".join(map(str, space.widths))
    warnings.warn(
        f"width {untrained} is not one the model was trained at ({trained}): "
        "its BatchNorm layers are cut from the next larger width and need recalibration "
        "(fjord.recalibrate)",
        stacklevel=7,  # the caller of ElasticModel.cut
    )


def _stored_widths(
    plan: WidthPlan,
    space: WidthSpace,
    per_width: set[str],
    widths: Mapping[str, Width],
    selection: UnitSelection,
) -> dict[str, Width]:
    """Return the width from which each tensor that is stored once per width is taken."""
    if all(is_leading(units) for units in selection.values()):
        return {name: _stored_width(plan, space, widths, name) for name in per_width}
    # Units selected in another way all exist only at the largest width.
    return dict.fromkeys(per_width, space.largest)


def _stored_width(
    plan: WidthPlan,
    space: WidthSpace,
    widths: Mapping[str, Width],
    name: str,
) -> Width:
    """Return the smallest trained width that has all channels of a norm layer."""
    path = name.rpartition(".")[0]
    families = plan.families_of.get((f"{path}.weight", 0))
    if not families:  # a layer without weights: its statistics have the same channels
        families = plan.families_of.get((name, 0), [])
    family_widths = [widths[family.name] for family in families]
    needed = max(family_widths, default=widths[""])
    for width in space.widths:
        if width >= needed:
            return width
    raise UserError(
        f"width {needed} is above the largest trained width {space.largest}, "
        "which has no BatchNorm layers for it"
    )
