"""An elastic model: one set of full-size weights, and plain submodels of every width on them."""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, Widths, WidthSpace
from fjord.elastic.batchnorm import (
    BatchNormMode,
    StoredSlice,
    batchnorm_tensors,
    stored_slices,
    untrained_widths,
)
from fjord.elastic.indexing import (
    AxisIndices,
    all_indices,
    is_leading,
    owned_copy,
    parameter_like,
    take_slice,
)
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.blueprint import Blueprint
from fjord.elastic.submodel.shared import SharedSubmodel, TensorSlice
from fjord.elastic.tensor_key import TensorKey

LayerWidths = tuple[tuple[str, Width], ...]
"""The width of each family, sorted by name: identifies a submodel."""


def as_layer_widths(widths: dict[str, Width]) -> LayerWidths:
    """Return widths by family as a dictionary key."""
    return tuple(sorted(widths.items()))


class _SourceSlice(NamedTuple):
    """A tensor of the elastic model, and the indices that a submodel takes from it."""

    key: str
    source: Tensor
    indices: AxisIndices


class ElasticModel:
    """Full-size weights with plain submodels at every width.

    BatchNorm layers are stored once per width (`norms="layers"`), or only their statistics are
    (`"statistics"`), or they are `"shared"`; a tensor stored once per width has that width in its
    key, as in `bn1.weight@2/5`. `calibrated` holds BatchNorm statistics that were measured after
    training, for submodels that have none of their own (see `recalibrate`).
    """

    def __init__(
        self,
        blueprint: Blueprint,
        plan: WidthPlan,
        space: WidthSpace,
        norms: BatchNormMode,
        tensors: dict[str, Tensor],
    ) -> None:
        self.blueprint = blueprint
        self.plan = plan
        self.space = space
        self.norms = norms
        self.tensors = tensors
        self.training = blueprint.template.training
        self.calibrated: dict[LayerWidths, dict[str, Tensor]] = {}
        self._submodels: dict[LayerWidths, SharedSubmodel] = {}
        # The same submodels: a training step looks them up by a single width, which must be fast.
        self._submodel_by_width: dict[Width, SharedSubmodel] = {}

    @classmethod
    def from_full(
        cls,
        blueprint: Blueprint,
        plan: WidthPlan,
        space: WidthSpace,
        norms: BatchNormMode,
        full: dict[str, Tensor],
    ) -> Self:
        """Start from the tensors of a full model; `norms` says which of them each width copies."""
        per_width = batchnorm_tensors(blueprint.template, norms)
        tensors: dict[str, Tensor] = {}
        for name, tensor in full.items():
            if name not in per_width:
                tensors[name] = owned_copy(tensor, tensor)
        if per_width:
            for width in space.widths:
                indices = plan.kept_indices(plan.leading_units(width))
                for name in sorted(per_width):
                    key = str(TensorKey(name, width))
                    sliced = take_slice(full[name], indices[name])
                    tensors[key] = owned_copy(sliced, full[name])
        return cls(blueprint, plan, space, norms, tensors)

    def at(self, width: Widths) -> nn.Module:
        """Return the submodel of this width on the model's own storage.

        Use it to train a width, or to switch width at run time. The same width gives the same
        module, in the mode of this model (`train`, `eval`). Weights whose units lie in several runs
        (LSTM gates) cannot be views: this call copies them in, and the next call copies back what
        was trained.
        """
        submodel = self.shared_submodel(width)
        if not submodel.exposed:
            submodel.exposed = True
            submodel.pull()
        net = submodel.net
        if net.training != self.training:
            net.train(self.training)
        return net

    def shared_submodel(self, width: Widths) -> SharedSubmodel:
        """Return the submodel of this width with its tensor slices, up to date."""
        self.sync_copies()
        submodel = None
        if isinstance(width, Width):
            submodel = self._submodel_by_width.get(width)
        if submodel is None:
            submodel = self._find_submodel(width)
        submodel.pull()
        return submodel

    def _find_submodel(self, width: Widths) -> SharedSubmodel:
        """Return the shared submodel of this width; build it if it is new."""
        widths = self.plan.family_widths(width)
        key = as_layer_widths(widths)
        submodel = self._submodels.get(key)
        if submodel is None:
            submodel = self._build_submodel(widths)
            self._submodels[key] = submodel
        if isinstance(width, Width):
            self._submodel_by_width[width] = submodel
        return submodel

    def shared_submodels(self) -> Iterable[SharedSubmodel]:
        """Return all shared submodels built so far."""
        return self._submodels.values()

    def _build_submodel(self, widths: dict[str, Width]) -> SharedSubmodel:
        self._check_batchnorm(widths)
        selection = self._default_units(widths)
        with self._inference_mode():
            slices = {}
            tensors = {}
            for name, part in self._source_slices(widths, selection).items():
                slices[name] = TensorSlice.from_source(*part)
                tensors[name] = slices[name].tensor
            net = self.blueprint.build(tensors, self.plan, selection)
            return SharedSubmodel(net.train(self.training), slices)

    def _check_batchnorm(self, widths: dict[str, Width]) -> None:
        """Raise an error for a width that has no BatchNorm layers of its own."""
        untrained = untrained_widths(widths, self.space)
        if not untrained or as_layer_widths(widths) in self.calibrated:
            return
        if batchnorm_tensors(self.blueprint.template, self.norms):
            trained = ", ".join(map(str, self.space.widths))
            raise UserError(
                f"width {untrained} is not one of {trained} and has no "
                "BatchNorm layers of its own: measure its statistics with "
                "fjord.recalibrate(model, width, batches), or use cut(), or elasticize with this "
                "width"
            )

    def _inference_mode(self) -> torch.inference_mode:
        """Return a context that makes new tensors inference tensors if the weights are.

        Tensors made in inference mode can be neither trained nor written to outside of it.
        """
        inference = any(tensor.is_inference() for tensor in self.tensors.values())
        return torch.inference_mode(inference)

    def sync_copies(self) -> None:
        """Write back what the user trained in copied weights (see `at`)."""
        submodels = list(self._submodels.values())  # another thread may be adding one
        changed = False
        for submodel in submodels:
            if not submodel.exposed:
                continue
            changed_slices = [part for part in submodel.copies if part.changed]
            for part in changed_slices:
                if part.outdated:
                    raise UserError(
                        f"{part.key} was changed in two submodels at once, and one change would "
                        "be lost: call at() before each step, or step both with a SlicedOptimizer"
                    )
                part.push()
                changed = True
        if changed:
            for submodel in submodels:
                submodel.pull()

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the submodels: they are views of this model's storage."""
        self.sync_copies()
        return {**self.__dict__, "_submodels": {}, "_submodel_by_width": {}}

    def cut(self, width: Widths, units: UnitSelection | None = None) -> nn.Module:
        """Return the submodel of this width as a plain module that owns its weights.

        `units` replaces the leading units by others, such as `plan.random_units(width, generator)`.
        """
        widths = self.plan.family_widths(width)
        selection = self._default_units(widths) if units is None else units
        tensors = self.cut_tensors(widths, selection)
        net = self.blueprint.build(tensors, self.plan, selection)
        return net.train(self.training)

    def cut_tensors(
        self,
        width: Widths,
        units: UnitSelection | None = None,
        *,
        warn: bool = True,
    ) -> dict[str, Tensor]:
        """Return copies of the tensors of the submodel of this width.

        Warns of BatchNorm statistics that were measured at another width, unless `warn` is False.
        """
        self.sync_copies()
        widths = self.plan.family_widths(width)
        selection = self._default_units(widths) if units is None else units
        tensors = {}
        for name, part in self._source_slices(widths, selection, warn=warn).items():
            sliced = take_slice(part.source, part.indices)
            tensors[name] = owned_copy(sliced, part.source)
        return tensors

    def set_statistics(self, width: Widths, statistics: dict[str, Tensor]) -> None:
        """Give a submodel its own BatchNorm statistics; `at` then returns a new module for it."""
        self.sync_copies()
        layer_widths = as_layer_widths(self.plan.family_widths(width))
        self._drop_submodels([layer_widths])
        with self._inference_mode():
            copies = {name: value.clone() for name, value in statistics.items()}
            self.calibrated[layer_widths] = copies

    def _drop_submodels(self, keys: Iterable[LayerWidths]) -> None:
        """Remove shared submodels; the next call of `at` builds them anew."""
        for key in keys:
            self._submodels.pop(key, None)
        self._submodel_by_width.clear()

    def _default_units(self, widths: dict[str, Width]) -> UnitSelection:
        """Return the units that a submodel has if no others are asked for."""
        return self.plan.leading_units(widths)

    def _source_slices(
        self,
        widths: dict[str, Width],
        selection: UnitSelection,
        *,
        warn: bool = True,
    ) -> dict[str, _SourceSlice]:
        """Return for each tensor of a submodel its key, its source and the indices to take."""
        statistics: dict[str, Tensor] = {}
        if all(is_leading(units) for units in selection.values()):
            statistics = self.calibrated.get(as_layer_widths(widths), {})
        calibrated = bool(statistics) or not warn
        slices: dict[str, _SourceSlice] = {}
        for name, part in self._stored_slices(widths, selection, calibrated=calibrated).items():
            source = self.tensors[part.key]
            slices[name] = _SourceSlice(part.key, source, part.indices)
        for name, value in statistics.items():
            key = f"{name} (calibrated)"
            slices[name] = _SourceSlice(key, value, all_indices(value.dim()))
        return slices

    def _stored_slices(
        self,
        widths: dict[str, Width],
        selection: UnitSelection,
        *,
        calibrated: bool = False,
    ) -> dict[str, StoredSlice]:
        """Return for each tensor of a submodel its key and the indices to take."""
        per_width = batchnorm_tensors(self.blueprint.template, self.norms)
        return stored_slices(
            self.plan, self.space, per_width, widths, selection, calibrated=calibrated
        )

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the full-size trainable tensors by key."""
        self.sync_copies()
        for key, tensor in self.tensors.items():
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                yield key, tensor

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors by key; they share storage with the model."""
        self.sync_copies()
        return {key: tensor.detach() for key, tensor in self.tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy all tensors in, also into submodels; names and shapes must match.

        What `recalibrate` measured belonged to other weights and is discarded.
        """
        self._check_state(state)
        with torch.no_grad():
            for key, tensor in self.tensors.items():
                tensor.copy_(state[key])
        self._drop_submodels(self.calibrated)
        self.calibrated.clear()
        for submodel in self._submodels.values():
            submodel.pull()

    def _check_state(self, state: dict[str, Tensor]) -> None:
        """Raise an error unless the state has the names and shapes of this model's tensors."""
        different = sorted(state.keys() ^ self.tensors.keys())
        if different:
            names = ", ".join(different)
            raise UserError(f"state: these tensors are missing or unknown: {names}")
        wrong = []
        for key, tensor in self.tensors.items():
            shape = tuple(state[key].shape)
            needed = tuple(tensor.shape)
            if shape != needed:
                wrong.append(f"{key}: {shape} for {needed}")
        if wrong:
            raise UserError(f"state: shapes do not match: {'; '.join(wrong)}")

    def to(self, device: torch.device | str) -> Self:
        """Move all weights to a device."""
        device = torch.device(device)
        self.sync_copies()
        tensors = {}
        for key, tensor in self.tensors.items():
            tensors[key] = owned_copy(tensor.to(device), tensor)
        self._replace_tensors(tensors)
        calibrated = {}
        for layer_widths, statistics in self.calibrated.items():
            calibrated[layer_widths] = {
                name: value.to(device) for name, value in statistics.items()
            }
        self.calibrated = calibrated
        return self

    def share_memory(self) -> Self:
        """Move all weights into memory that processes forked from now on share with this one.

        The memory has no name in the file system: it is freed with the last process, however that
        one ends.
        """
        self.sync_copies()
        tensors = {}
        for key, tensor in self.tensors.items():
            tensors[key] = _shared_copy(tensor)
        self._replace_tensors(tensors)
        return self

    def _replace_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Use other tensors from now on; submodels on the old ones are dropped."""
        self.tensors = tensors
        self._submodels.clear()
        self._submodel_by_width.clear()

    def train(self, mode: bool = True) -> Self:
        """Put this model and its submodels in training mode."""
        self.training = mode
        for submodel in self._submodels.values():
            submodel.net.train(mode)
        return self

    def eval(self) -> Self:
        """Put this model and its submodels in evaluation mode."""
        return self.train(False)

    def save(self, path: str | Path) -> None:
        """Write the model to one file: weights as safetensors, the plan as JSON in its metadata."""
        from fjord.elastic.storage import save_model

        save_model(self, path)

    def __call__(self, *args: Any) -> Any:
        """Raise an error: only a submodel has a width."""
        raise TypeError(
            "an elastic model has many widths: call model.at(width)(...) or model.cut(width)(...)"
        )

    def __repr__(self) -> str:
        """Name the model and its widths."""
        kind = type(self.blueprint.template).__name__
        widths = ", ".join(map(str, self.space.widths))
        return f"ElasticModel({kind}, widths {widths}); see .summary()"

    def summary(self) -> str:
        """Explain families, their layers and units, and what is frozen and why."""
        from fjord.elastic.summary import summarize_model

        return summarize_model(self)


def _shared_copy(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in shared memory, as a parameter or a buffer as it was."""
    num_bytes = tensor.numel() * tensor.element_size()
    memory = mmap.mmap(-1, max(1, num_bytes))
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel())
    copied = flat.view(tensor.shape).copy_(tensor.detach())
    return parameter_like(copied, tensor)
