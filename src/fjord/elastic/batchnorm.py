"""BatchNorm per width (appendix, CIFAR10): which tensors are kept once per width, and where each lies."""

import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace
from fjord.elastic.plan import AxisIndices, UnitSelection, WidthPlan, is_leading

BatchNormMode = Literal["layers", "statistics", "shared"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def batchnorm_tensors(model: nn.Module, norms: BatchNormMode) -> set[str]:
    """Return the tensors that are kept once per width."""
    if norms == "shared":
        return set()
    names = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for leaf, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and (norms == "layers" or leaf in STATISTICS):
                    names.add(f"{path}.{leaf}" if path else leaf)
    return names


def stored_indices(
    plan: WidthPlan,
    space: WidthSpace,
    per_width: set[str],
    widths: dict[str, Width],
    kept: UnitSelection,
    *,
    calibrated: bool = False,
) -> dict[str, tuple[str, AxisIndices]]:
    """Return, for each tensor of a submodel, the key of the stored tensor and the indices to take from it.

    A `calibrated` submodel has BatchNorm statistics elsewhere, so nothing is said of a width that was not trained.
    """
    indices = plan.kept_indices(kept)
    if all(map(is_leading, kept.values())):
        stored = {name: _stored_width(plan, space, widths, name) for name in per_width}
    else:  # units chosen otherwise are all there only in the widest
        stored = dict.fromkeys(per_width, space.largest)
    if per_width and not calibrated:
        _warn_of_untrained(widths, space)
    held = {w: plan.kept_indices(plan.ordered(w)) for w in set(stored.values())}
    found: dict[str, tuple[str, AxisIndices]] = {}
    for name, wanted in indices.items():
        if name not in per_width:
            found[name] = (name, wanted)
            continue
        width = stored[name]
        found[name] = (
            f"{name}@{width}",
            [indices_within(w, h) for w, h in zip(wanted, held[width][name], strict=True)],
        )
    return found


def _warn_of_untrained(widths: dict[str, Width], space: WidthSpace) -> None:
    strange = ", ".join(str(w) for w in sorted(set(widths.values()) - set(space.widths)))
    if strange:
        warnings.warn(
            f"width {strange} is not one the model was trained at ({', '.join(map(str, space.widths))}): its BatchNorm "
            "layers are cut from the next larger width and need recalibration (fjord.recalibrate)",
            stacklevel=7,
        )


def _stored_width(plan: WidthPlan, space: WidthSpace, widths: dict[str, Width], name: str) -> Width:
    """Return the smallest trained width that holds all channels of a norm layer."""
    families = plan.families_of.get(
        (name.rpartition(".")[0] + ".weight", 0)
    ) or plan.families_of.get((name, 0), [])
    needed = max((widths[f.name] for f in families), default=widths[""])
    for width in space.widths:
        if width >= needed:
            return width
    raise UserError(
        f"width {needed} is above the largest trained width {space.largest}, which has no BatchNorm layers for it"
    )


def indices_within(wanted: Tensor | None, held: Tensor | None) -> Tensor | None:
    """Return the positions of wanted indices inside a tensor that already holds only some."""
    if held is None or wanted is None:
        return wanted
    if len(wanted) == len(held):
        return None
    return torch.searchsorted(held, wanted)
