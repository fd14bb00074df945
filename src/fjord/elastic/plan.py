"""The width plan: which indices of which tensor axes are the units of which family."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import gcd
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fjord.core.errors import UserError
from fjord.core.width import Width, Widths, kept_units, parse_width

Axis = tuple[str, int]
"""A tensor's name and one of its dimensions."""
AxisIndices = list[Tensor | None]
"""The kept indices along each axis of a tensor; None keeps all."""
UnitSelection = dict[str, Tensor]
"""The kept units of each family, by its name, in rising order."""


@dataclass(frozen=True, eq=False)
class UnitFamily:
    """Units that stand in the same places and are kept or dropped together.

    Row u of `members[axis]` holds the indices of unit u along that axis: one for a plain layer,
    one per gate for an LSTM, a whole head for attention.
    """

    name: str
    members: Mapping[Axis, Tensor]
    layers: tuple[str, ...]
    """The layers that produce these units."""
    multiple: int = 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitFamily):
            return NotImplemented
        names = (self.name, self.layers, self.multiple, list(self.members))
        same = names == (other.name, other.layers, other.multiple, list(other.members))
        return same and all(torch.equal(m, other.members[axis]) for axis, m in self.members.items())

    def __hash__(self) -> int:
        return hash((self.name, self.layers, self.multiple))

    @property
    def units(self) -> int:
        """K, the number of units at full width."""
        return len(next(iter(self.members.values())))

    def count(self, width: Width) -> int:
        """Return how many units the width keeps."""
        return kept_units(width, self.units, self.multiple)

    def rounded(self, round_to: int) -> int:
        """Return the multiple of units whose channels come in multiples of `round_to`."""
        block = min(m.shape[1] for m in self.members.values())
        return round_to // gcd(round_to, block)


@dataclass(frozen=True)
class FrozenAxis:
    """An axis that stays whole, and why."""

    axis: Axis
    size: int
    reason: str


@dataclass(frozen=True)
class WidthPlan:
    """All families of a model, the shapes of its tensors, and what is frozen."""

    families: tuple[UnitFamily, ...]
    shapes: Mapping[str, tuple[int, ...]]
    frozen: tuple[FrozenAxis, ...]

    def widths(self, width: Widths) -> dict[str, Width]:
        """Return the width of each family, and of all the rest under "".

        Given by layer, a width for `"*"` is that of all layers not named (1 where it is missing).
        """
        if not isinstance(width, Mapping):
            width = {"*": width}
        if set(width) == {
            "",
            *(family.name for family in self.families),
        }:  # already one width per family
            return {name: parse_width(value) for name, value in width.items()}
        rest = parse_width(width.get("*", 1))
        chosen = {"": rest} | {family.name: rest for family in self.families}
        given: dict[str, str] = {}
        for pattern, value in width.items():
            if pattern != "*":
                self._choose(pattern, parse_width(value), chosen, given)
        return chosen

    def _choose(
        self, pattern: str, width: Width, chosen: dict[str, Width], given: dict[str, str]
    ) -> None:
        found = [
            f for f in self.families if any(matches_name(pattern, layer) for layer in f.layers)
        ]
        if not found:
            layers = sorted({layer for f in self.families for layer in f.layers})
            raise UserError(
                f"layer {pattern!r} has no elastic units; layers that have: {', '.join(layers)}"
            )
        for family in found:
            other = given.setdefault(family.name, pattern)
            if other != pattern and chosen[family.name] != width:
                raise UserError(
                    f"layers {other!r} and {pattern!r} share the units of {family.name} and cannot have "
                    f"widths {chosen[family.name]} and {width}"
                )
            chosen[family.name] = width

    def ordered(self, width: Widths) -> UnitSelection:
        """Keep the first ceil(width * K) units of each family: Ordered Dropout."""
        widths = self.widths(width)
        return {f.name: torch.arange(f.count(widths[f.name])) for f in self.families}

    def random(self, width: Widths, generator: torch.Generator) -> UnitSelection:
        """Keep as many units, chosen at random: Random Dropout, the paper's control."""
        widths = self.widths(width)
        return {
            f.name: torch.randperm(f.units, generator=generator)[: f.count(widths[f.name])]
            .sort()
            .values
            for f in self.families
        }

    def kept_indices(self, kept: UnitSelection) -> dict[str, AxisIndices]:
        """Return, for each tensor, the kept indices along each axis, or None where all are kept."""
        result: dict[str, AxisIndices] = {
            name: [None] * len(shape) for name, shape in self.shapes.items()
        }
        masks: dict[Axis, Tensor] = {}
        for family in self.families:
            dropped = torch.ones(family.units, dtype=torch.bool)
            dropped[kept[family.name]] = False
            for axis, indices in family.members.items() if dropped.any() else ():
                mask = masks.setdefault(
                    axis, torch.ones(self.shapes[axis[0]][axis[1]], dtype=torch.bool)
                )
                mask[indices[dropped].reshape(-1)] = False
        for (name, dim), mask in masks.items():
            result[name][dim] = mask.nonzero()[:, 0]
        return result

    def cut_shapes(self, kept: UnitSelection) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the cut tensors."""
        indices = self.kept_indices(kept)
        return {
            name: tuple(
                n if i is None else len(i) for n, i in zip(shape, indices[name], strict=True)
            )
            for name, shape in self.shapes.items()
        }

    @cached_property
    def families_of(self) -> dict[Axis, list[UnitFamily]]:
        """The families along each axis."""
        found: dict[Axis, list[UnitFamily]] = {}
        for family in self.families:
            for axis in family.members:
                found.setdefault(axis, []).append(family)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "families": [
                {
                    "name": f.name,
                    "layers": f.layers,
                    "multiple": f.multiple,
                    "members": [_pack(a, m) for a, m in f.members.items()],
                }
                for f in self.families
            ],
            "shapes": self.shapes,
            "frozen": [[*f.axis, f.size, f.reason] for f in self.frozen],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a plan back from plain data."""
        families = tuple(
            UnitFamily(
                f["name"], dict(map(_unpack, f["members"])), tuple(f["layers"]), f["multiple"]
            )
            for f in data["families"]
        )
        shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return cls(
            families,
            shapes,
            tuple(FrozenAxis((n, d), size, why) for n, d, size, why in data["frozen"]),
        )


def matches_name(pattern: str, name: str) -> bool:
    """Say whether a name is the pattern's, lies below it, or fits it with wildcards.

    >>> matches_name("layer3", "layer3.0.conv1"), matches_name("layer3", "layer31"), matches_name("*.bias", "fc.bias")
    (True, False, True)
    """
    return name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


def take_slice(tensor: Tensor, indices: AxisIndices) -> Tensor:
    """Cut a tensor along each axis: a view where a leading slice is kept, else a copy."""
    for dim, index in enumerate(indices):
        if index is not None:
            tensor = (
                tensor.narrow(dim, 0, len(index))
                if is_leading(index)
                else tensor.index_select(dim, index.to(tensor.device))
            )
    return tensor


def owned_copy(cut: Tensor, source: Tensor) -> Tensor:
    """Return a copy of a cut tensor as the same kind of tensor: parameter or buffer."""
    copied = cut.detach().clone(memory_format=torch.contiguous_format)
    return (
        nn.Parameter(copied, source.requires_grad) if isinstance(source, nn.Parameter) else copied
    )


def strided_view(tensor: Tensor, indices: AxisIndices) -> Tensor | None:
    """Return a view of the kept elements in their order, where strides can say it: runs of equal length and distance.

    An axis of several runs (the gates of an LSTM) takes two axes of the view.
    """
    sizes: list[int] = []
    strides: list[int] = []
    offset = tensor.storage_offset()
    for size, stride, index in zip(tensor.shape, tensor.stride(), indices, strict=True):
        if index is None:
            sizes, strides = [*sizes, size], [*strides, stride]
            continue
        if index not in _RUNS:
            _RUNS[index] = _runs(index)
        if (found := _RUNS[index]) is None:
            return None
        first, runs, step, length = found
        sizes, strides = (
            [*sizes, *([runs] if step else []), length],
            [*strides, *([step * stride] if step else []), stride],
        )
        offset += first * stride
    return tensor.as_strided(sizes, strides, offset)


_RUNS: MutableMapping[Tensor, tuple[int, int, int, int] | None] = WeakTensorKeyDictionary()
"""What is known of indices: the same tensors are asked about in every round."""


def _runs(index: Tensor) -> tuple[int, int, int, int] | None:
    """Return rising indices as (first, runs, distance, length), if their runs are of equal length and distance."""
    ends = (index.diff() != 1).nonzero()[:, 0] + 1
    length = int(ends[0]) if len(ends) else len(index)
    step, runs = int(index[length] - index[0]) if len(ends) else 0, len(ends) + 1
    steps = index[0] + step * torch.arange(runs)[:, None] + torch.arange(length)
    return (int(index[0]), runs, step, length) if torch.equal(steps.reshape(-1), index) else None


def is_leading(index: Tensor) -> bool:
    """Say whether rising indices are 0, 1, 2, ... without a gap."""
    return int(index[-1]) == len(index) - 1


def put_slice(tensor: Tensor, indices: AxisIndices, value: Tensor) -> None:
    """Write a cut tensor back in its place."""
    whole = [
        torch.arange(n) if i is None else i for n, i in zip(tensor.shape, indices, strict=True)
    ]
    tensor[torch.meshgrid(*whole, indexing="ij") if whole else ...] = value


def _pack(axis: Axis, indices: Tensor) -> list[Any]:
    """Write unit indices as (offsets, stride): they nearly always step evenly from unit to unit."""
    stride = int(indices[1, 0] - indices[0, 0])
    even = torch.equal(indices, indices[:1] + stride * torch.arange(len(indices))[:, None])
    return (
        [*axis, len(indices), indices[0].tolist(), stride]
        if even
        else [*axis, len(indices), indices.tolist(), None]
    )


def _unpack(packed: list[Any]) -> tuple[Axis, Tensor]:
    name, dim, count, offsets, stride = packed
    if stride is None:
        return (name, dim), torch.tensor(offsets)
    return (name, dim), torch.tensor(offsets)[None] + stride * torch.arange(count)[:, None]
