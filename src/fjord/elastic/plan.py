"""The width plan: which indices of which tensor axes are the units of which family."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import gcd
from typing import Any, Self

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.width import Width, Widths, kept_units, parse_width
from fjord.elastic.indexing import AxisIndices, all_indices, sliced_shape

Axis = tuple[str, int]
"""A tensor's name and one of its dimensions."""
UnitSelection = dict[str, Tensor]
"""The selected units of each family, by its name, in rising order."""


@dataclass(frozen=True, eq=False)
class UnitFamily:
    """Units that occur along the same axes and are kept or dropped together.

    Row u of `members[axis]` holds the indices of unit u along that axis: one for a plain layer,
    one per gate for an LSTM, a whole head for attention.
    """

    name: str
    members: Mapping[Axis, Tensor]
    layers: tuple[str, ...]
    """The layers that produce these units."""
    multiple: int = 1
    """The number of kept units is rounded up to a multiple of this."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitFamily):
            return NotImplemented
        if self._description() != other._description():
            return False
        for axis, indices in self.members.items():
            if not torch.equal(indices, other.members[axis]):
                return False
        return True

    def __hash__(self) -> int:
        return hash((self.name, self.layers, self.multiple))

    def _description(self) -> tuple[Any, ...]:
        return self.name, self.layers, self.multiple, list(self.members)

    @property
    def num_units(self) -> int:
        """K, the number of units at full width."""
        first = next(iter(self.members.values()))
        return len(first)

    def unit_count(self, width: Width) -> int:
        """Return how many units the width keeps."""
        return kept_units(width, self.num_units, self.multiple)

    def rounding_multiple(self, round_to: int) -> int:
        """Return the multiple of units whose channels come in multiples of `round_to`."""
        channels = min(indices.shape[1] for indices in self.members.values())
        return round_to // gcd(round_to, channels)

    def dropped_units(self, selection: UnitSelection) -> Tensor:
        """Return a mask over the units that is True where a unit is not selected."""
        dropped = torch.ones(self.num_units, dtype=torch.bool)
        dropped[selection[self.name]] = False
        return dropped

    def to_json(self) -> dict[str, Any]:
        """Return the family as plain data."""
        packed = []
        for axis, indices in self.members.items():
            packed.append(_pack_indices(axis, indices))
        return {
            "name": self.name,
            "layers": self.layers,
            "multiple": self.multiple,
            "members": packed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a family back from plain data."""
        members = dict(map(_unpack_indices, data["members"]))
        return cls(
            name=data["name"],
            members=members,
            layers=tuple(data["layers"]),
            multiple=data["multiple"],
        )


@dataclass(frozen=True)
class FrozenAxis:
    """An axis that is never cut, and the reason."""

    axis: Axis
    size: int
    reason: str

    def to_json(self) -> list[Any]:
        """Return the axis as plain data."""
        return [*self.axis, self.size, self.reason]

    @classmethod
    def from_json(cls, data: list[Any]) -> Self:
        """Read an axis back from plain data."""
        name, dim, size, reason = data
        return cls((name, dim), size, reason)


@dataclass(frozen=True)
class WidthPlan:
    """All families of a model, the shapes of its tensors, and what is frozen."""

    families: tuple[UnitFamily, ...]
    shapes: Mapping[str, tuple[int, ...]]
    frozen: tuple[FrozenAxis, ...]

    def family_widths(self, width: Widths) -> dict[str, Width]:
        """Return the width of each family, and under "" that of the layers in no family.

        Where widths are given by layer, the width of `"*"` is that of all layers not named
        (default 1).
        """
        if not isinstance(width, Mapping):
            width = {"*": width}
        if set(width) == self._width_names:  # already one width per family
            return {name: parse_width(value) for name, value in width.items()}
        default = parse_width(width.get("*", 1))
        widths = {"": default}
        for family in self.families:
            widths[family.name] = default
        patterns: dict[str, str] = {}
        for pattern, value in width.items():
            if pattern != "*":
                self._assign_width(pattern, parse_width(value), widths, patterns)
        return widths

    @cached_property
    def _width_names(self) -> set[str]:
        """The keys of the result of `family_widths`."""
        return {"", *(family.name for family in self.families)}

    def _assign_width(
        self,
        pattern: str,
        width: Width,
        widths: dict[str, Width],
        patterns: dict[str, str],
    ) -> None:
        """Set the width of the families whose layers match a pattern.

        `patterns` remembers which pattern set the width of a family: two may not disagree.
        """
        for family in self._matching_families(pattern):
            other = patterns.setdefault(family.name, pattern)
            if other != pattern and widths[family.name] != width:
                raise UserError(
                    f"layers {other!r} and {pattern!r} share the units of {family.name} "
                    f"and cannot have widths {widths[family.name]} and {width}"
                )
            widths[family.name] = width

    def _matching_families(self, pattern: str) -> list[UnitFamily]:
        """Return the families that have a layer whose name matches the pattern."""
        matching = []
        all_layers: set[str] = set()
        for family in self.families:
            all_layers.update(family.layers)
            if any(matches_name(pattern, layer) for layer in family.layers):
                matching.append(family)
        if not matching:
            names = ", ".join(sorted(all_layers))
            raise UserError(f"layer {pattern!r} has no elastic units; layers that have: {names}")
        return matching

    def leading_units(self, width: Widths) -> UnitSelection:
        """Select the first ceil(width * K) units of each family: Ordered Dropout."""
        widths = self.family_widths(width)
        selection = {}
        for family in self.families:
            count = family.unit_count(widths[family.name])
            selection[family.name] = torch.arange(count)
        return selection

    def random_units(self, width: Widths, generator: torch.Generator) -> UnitSelection:
        """Select as many units, but at random: Random Dropout, the paper's control."""
        widths = self.family_widths(width)
        selection = {}
        for family in self.families:
            count = family.unit_count(widths[family.name])
            order = torch.randperm(family.num_units, generator=generator)
            selection[family.name] = order[:count].sort().values
        return selection

    def kept_indices(self, selection: UnitSelection) -> dict[str, AxisIndices]:
        """Return for each tensor the kept indices along each axis, or None where all are kept."""
        indices: dict[str, AxisIndices] = {}
        for name, shape in self.shapes.items():
            indices[name] = all_indices(len(shape))
        for (name, dim), mask in self._kept_masks(selection).items():
            indices[name][dim] = mask.nonzero()[:, 0]
        return indices

    def _kept_masks(self, selection: UnitSelection) -> dict[Axis, Tensor]:
        """Return a mask of the kept indices for each axis that loses some."""
        masks: dict[Axis, Tensor] = {}
        for family in self.families:
            dropped = family.dropped_units(selection)
            if not dropped.any():
                continue
            for axis, indices in family.members.items():
                if axis not in masks:
                    name, dim = axis
                    size = self.shapes[name][dim]
                    masks[axis] = torch.ones(size, dtype=torch.bool)
                dropped_indices = indices[dropped].reshape(-1)
                masks[axis][dropped_indices] = False
        return masks

    def cut_shapes(self, selection: UnitSelection) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of a submodel that keeps these units."""
        indices = self.kept_indices(selection)
        shapes = {}
        for name, shape in self.shapes.items():
            shapes[name] = tuple(sliced_shape(shape, indices[name]))
        return shapes

    @cached_property
    def families_of(self) -> dict[Axis, list[UnitFamily]]:
        """The families along each axis."""
        families: dict[Axis, list[UnitFamily]] = {}
        for family in self.families:
            for axis in family.members:
                families.setdefault(axis, []).append(family)
        return families

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "families": [family.to_json() for family in self.families],
            "shapes": self.shapes,
            "frozen": [axis.to_json() for axis in self.frozen],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a plan back from plain data."""
        families = map(UnitFamily.from_json, data["families"])
        frozen = map(FrozenAxis.from_json, data["frozen"])
        shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return cls(tuple(families), shapes, tuple(frozen))


def matches_name(pattern: str, name: str) -> bool:
    """Return whether a name is the pattern, lies below it, or matches it with wildcards.

    >>> matches_name("layer3", "layer3.0.conv1"), matches_name("layer3", "layer31")
    (True, False)
    >>> matches_name("*.bias", "fc.bias")
    True
    """
    if name == pattern or name.startswith(f"{pattern}."):
        return True
    return fnmatchcase(name, pattern)


def _pack_indices(axis: Axis, indices: Tensor) -> list[Any]:
    """Return the indices of units as plain data.

    The indices nearly always step evenly from unit to unit: then those of the first unit and the
    step are enough, and else the step is None.
    """
    first, second = indices[:2]
    step = int(second[0] - first[0])
    if torch.equal(indices, _even_indices(first, step, len(indices))):
        return [*axis, len(indices), first.tolist(), step]
    return [*axis, len(indices), indices.tolist(), None]


def _unpack_indices(packed: list[Any]) -> tuple[Axis, Tensor]:
    """Return the axis and the indices of its units."""
    name, dim, count, offsets, step = packed
    indices = torch.tensor(offsets)
    if step is not None:
        indices = _even_indices(indices, step, count)
    return (name, dim), indices


def _even_indices(first: Tensor, step: int, count: int) -> Tensor:
    """Return the indices of units that step evenly, one unit a row."""
    offsets = step * torch.arange(count)
    return first + offsets[:, None]
