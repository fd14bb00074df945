"""An elastic model: one set of full-size weights, and plain submodels of every width on them."""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, Widths, WidthSpace
from fjord.elastic.batchnorm import BatchNormMode, batchnorm_tensors, stored_indices
from fjord.elastic.plan import (
    AxisIndices,
    UnitSelection,
    WidthPlan,
    is_leading,
    owned_copy,
    take_slice,
)
from fjord.elastic.submodel.blueprint import Blueprint
from fjord.elastic.submodel.shared import SharedSubmodel, TensorSlice

LayerWidths = tuple[tuple[str, Width], ...]
"""The width of each family in one order: what a submodel is known by."""


def as_layer_widths(widths: dict[str, Width]) -> LayerWidths:
    """Return widths by family as a key."""
    return tuple(sorted(widths.items()))


class ElasticModel:
    """Full-size weights with plain submodels at every width.

    BatchNorm layers are kept once per width (`norms="layers"`), or only their statistics are
    (`"statistics"`), or they are `"shared"`; a tensor kept per width has that width in its key,
    as in `bn1.weight@2/5`. `calibrated` holds BatchNorm statistics that were measured afterwards
    for submodels that have none of their own (see `recalibrate`).
    """

    def __init__(
        self,
        blueprint: Blueprint,
        plan: WidthPlan,
        space: WidthSpace,
        norms: BatchNormMode,
        tensors: dict[str, Tensor],
    ) -> None:
        self.blueprint, self.plan, self.space, self.norms = blueprint, plan, space, norms
        self.tensors = tensors
        self.training = blueprint.template.training
        self.calibrated: dict[LayerWidths, dict[str, Tensor]] = {}
        self._views: dict[LayerWidths, SharedSubmodel] = {}
        self._by_width: dict[Width, SharedSubmodel] = {}

    @classmethod
    def spread(
        cls,
        blueprint: Blueprint,
        plan: WidthPlan,
        space: WidthSpace,
        norms: BatchNormMode,
        full: dict[str, Tensor],
    ) -> Self:
        """Start from the tensors of a full model: every width gets its own copy of what is kept per width."""
        split = batchnorm_tensors(blueprint.template, norms)
        tensors = {name: owned_copy(t, t) for name, t in full.items() if name not in split}
        for width in space.widths if split else ():
            indices = plan.kept_indices(plan.ordered(width))
            tensors |= {
                f"{name}@{width}": owned_copy(take_slice(full[name], indices[name]), full[name])
                for name in sorted(split)
            }
        return cls(blueprint, plan, space, norms, tensors)

    def at(self, width: Widths) -> nn.Module:
        """Return the submodel of this width on the model's own storage: to train it, or to switch width at run time.

        The same width gives the same module, in the mode of this model (`train`, `eval`). Weights whose units
        lie in several runs (LSTM gates) cannot be views: they are copied in by this call, and what was trained
        is copied back by the next call.
        """
        view = self.view(width)
        if not view.held:
            view.held = True
            view.pull()
        return view.net if view.net.training == self.training else view.net.train(self.training)

    def view(self, width: Widths) -> SharedSubmodel:
        """Return the shared submodel of this width with its parts, up to date."""
        self.sync()
        view = self._by_width.get(width) if isinstance(width, Width) else None
        if view is None:
            widths = self.plan.widths(width)
            view = self._views.get(key := as_layer_widths(widths))
            if view is None:
                view = self._views[key] = self._new_view(widths)
            if isinstance(width, Width):
                self._by_width[width] = view
        view.pull()
        return view

    def views(self) -> Iterable[SharedSubmodel]:
        """Return all shared submodels made so far."""
        return self._views.values()

    def _new_view(self, widths: dict[str, Width]) -> SharedSubmodel:
        strange = set(widths.values()) - set(self.space.widths)
        if (
            strange
            and as_layer_widths(widths) not in self.calibrated
            and batchnorm_tensors(self.blueprint.template, self.norms)
        ):
            raise UserError(
                f"width {', '.join(map(str, sorted(strange)))} is not one of {', '.join(map(str, self.space.widths))} "
                "and has no BatchNorm layers of its own: give it statistics with fjord.recalibrate(model, width, "
                "batches), or use cut(), or elasticize with this width"
            )
        kept = self._ordered(widths)
        with self._as_made():
            parts = {
                name: TensorSlice.of(*stored) for name, stored in self._stored(widths, kept).items()
            }
            net = self.blueprint.build(
                {name: part.tensor for name, part in parts.items()}, self.plan, kept
            )
            return SharedSubmodel(net.train(self.training), parts)

    def _as_made(self) -> torch.inference_mode:
        """Make tensors of the weights' kind: those of inference mode can be neither trained nor written to after it."""
        return torch.inference_mode(any(tensor.is_inference() for tensor in self.tensors.values()))

    def sync(self) -> None:
        """Write back what the user trained in copied weights (see `at`)."""
        views = list(self._views.values())  # another thread may be adding one
        changed = [part for view in views if view.held for part in view.copies if part.changed]
        for part in changed:
            if part.outdated:
                raise UserError(
                    f"{part.key} was changed in two submodels at once, and one change would be lost: "
                    "call at() before each step, or step both with a SlicedOptimizer"
                )
            part.push()
        for view in views if changed else ():
            view.pull()

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the submodels: they are views of this model's storage."""
        self.sync()
        return {**self.__dict__, "_views": {}, "_by_width": {}}

    def cut(self, width: Widths, kept: UnitSelection | None = None) -> nn.Module:
        """Return the submodel of this width as a plain module that owns its weights.

        `kept` replaces the leading units by others, such as `plan.random(width, generator)`.
        """
        widths = self.plan.widths(width)
        kept = self._ordered(widths) if kept is None else kept
        return self.blueprint.build(self.cut_tensors(widths, kept), self.plan, kept).train(
            self.training
        )

    def cut_tensors(
        self, width: Widths, kept: UnitSelection | None = None, *, warn: bool = True
    ) -> dict[str, Tensor]:
        """Return copies of the tensors of the submodel of this width; warn of BatchNorm statistics that do not fit."""
        self.sync()
        widths = self.plan.widths(width)
        stored = self._stored(widths, self._ordered(widths) if kept is None else kept, warn=warn)
        return {
            name: owned_copy(take_slice(tensor, indices), tensor)
            for name, (_, tensor, indices) in stored.items()
        }

    def calibrate(self, width: Widths, statistics: dict[str, Tensor]) -> None:
        """Give a submodel BatchNorm statistics of its own; `at` then returns another module than before."""
        self.sync()
        mix = as_layer_widths(self.plan.widths(width))
        self._forget_views([mix])
        with self._as_made():
            self.calibrated[mix] = {name: value.clone() for name, value in statistics.items()}

    def _forget_views(self, mixes: Iterable[LayerWidths]) -> None:
        """Let go of shared submodels, which the next call of `at` builds anew."""
        for mix in mixes:
            self._views.pop(mix, None)
        self._by_width.clear()

    def _ordered(self, widths: dict[str, Width]) -> UnitSelection:
        """Return the units a submodel keeps unless told otherwise."""
        return self.plan.ordered(widths)

    def _stored(
        self, widths: dict[str, Width], kept: UnitSelection, *, warn: bool = True
    ) -> dict[str, tuple[str, Tensor, AxisIndices]]:
        """Return for each tensor of a submodel its key, where it lies and the indices to take."""
        measured = (
            self.calibrated.get(as_layer_widths(widths), {})
            if all(map(is_leading, kept.values()))
            else {}
        )
        sources = self._sources(widths, kept, calibrated=bool(measured) or not warn)
        found = {
            name: (key, self.tensors[key], indices) for name, (key, indices) in sources.items()
        }
        return found | {
            name: (f"{name} (calibrated)", value, [None] * value.dim())
            for name, value in measured.items()
        }

    def _sources(
        self, widths: dict[str, Width], kept: UnitSelection, *, calibrated: bool = False
    ) -> dict[str, tuple[str, AxisIndices]]:
        """Return for each tensor of a submodel its key and the indices to take."""
        per_width = batchnorm_tensors(self.blueprint.template, self.norms)
        return stored_indices(self.plan, self.space, per_width, widths, kept, calibrated=calibrated)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the full-size trainable tensors by key."""
        self.sync()
        for key, tensor in self.tensors.items():
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                yield key, tensor

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors by key; they share storage with the model."""
        self.sync()
        return {key: tensor.detach() for key, tensor in self.tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy all tensors in, over whatever submodels hold; names and shapes must match.

        What `recalibrate` measured belonged to other weights and is forgotten.
        """
        if state.keys() != self.tensors.keys():
            odd = ", ".join(sorted(state.keys() ^ self.tensors.keys()))
            raise UserError(f"state: these tensors are missing or unknown: {odd}")
        wrong = [
            f"{k}: {tuple(state[k].shape)} for {tuple(t.shape)}"
            for k, t in self.tensors.items()
            if state[k].shape != t.shape
        ]
        if wrong:
            raise UserError(f"state: shapes do not match: {'; '.join(wrong)}")
        with torch.no_grad():
            for key, tensor in self.tensors.items():
                tensor.copy_(state[key])
        self._forget_views(self.calibrated)
        self.calibrated.clear()
        for view in self._views.values():
            view.pull()

    def to(self, device: torch.device | str) -> Self:
        """Move all weights to a device."""
        device = torch.device(device)
        self.sync()
        self.tensors = {k: owned_copy(t.to(device), t) for k, t in self.tensors.items()}
        self.calibrated = {
            m: {k: t.to(device) for k, t in s.items()} for m, s in self.calibrated.items()
        }
        self._views.clear()
        self._by_width.clear()
        return self

    def share_memory(self) -> Self:
        """Move all weights into memory that processes forked from now on share with this one.

        The memory has no name in the file system: it is gone with the last process, however that ends.
        """
        self.sync()
        self.tensors = {key: _shared(tensor) for key, tensor in self.tensors.items()}
        self._views.clear()
        self._by_width.clear()
        return self

    def train(self, mode: bool = True) -> Self:
        """Put this model and its submodels in training mode."""
        self.training = mode
        for view in self._views.values():
            view.net.train(mode)
        return self

    def eval(self) -> Self:
        """Put this model and its submodels in evaluation mode."""
        return self.train(False)

    def save(self, path: str | Path) -> None:
        """Write the model to one file: weights as safetensors, the plan as JSON in its metadata."""
        from fjord.elastic.storage import save_model

        save_model(self, path)

    def __call__(self, *args: Any) -> Any:
        """Refuse: only a submodel has a width."""
        raise TypeError(
            "an elastic model has many widths: call model.at(width)(...) or model.cut(width)(...)"
        )

    def __repr__(self) -> str:
        """Name the model and its widths."""
        kind = type(self.blueprint.template).__name__
        return (
            f"ElasticModel({kind}, widths {', '.join(map(str, self.space.widths))}); see .summary()"
        )

    def summary(self) -> str:
        """Explain families, their layers and units, and what is frozen and why."""
        from fjord.elastic.summary import summarise

        return summarise(self)


def _shared(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in shared memory, as the same kind of tensor."""
    memory = mmap.mmap(-1, max(1, tensor.numel() * tensor.element_size()))
    copy = (
        torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel())
        .view(tensor.shape)
        .copy_(tensor.detach())
    )
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
