"""Submodels on the storage of the full-size weights, tensor by tensor."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fjord.elastic.indexing import (
    AxisIndices,
    parameter_like,
    put_slice,
    sliced_shape,
    strided_view,
    take_slice,
)


@dataclass
class TensorSlice:
    """One tensor of a submodel and the part of the full-size tensor that it stands for.

    Where strides can express that part, `source_view` is a view of it. If the view has the shape of
    the submodel's tensor, it is the tensor; otherwise (LSTM gates, joined layers) the tensor is a
    copy.
    """

    key: str
    source: Tensor
    tensor: Tensor
    indices: AxisIndices
    source_view: Tensor | None
    last_pulled: Tensor | None = None
    """The value of a copy after it was last brought up to date."""

    @classmethod
    def from_source(
        cls,
        key: str,
        source: Tensor,
        indices: AxisIndices,
    ) -> "TensorSlice":
        """Slice a full-size tensor."""
        full = source.detach()
        view = strided_view(full, indices)
        sliced = take_slice(full, indices) if view is None else view
        shape = sliced_shape(source.shape, indices)
        is_copy = list(sliced.shape) != shape
        if is_copy:
            # Runs of a single unit could be viewed in this shape too, hence the explicit copy.
            sliced = sliced.reshape(shape).clone()
        tensor = parameter_like(sliced, source)
        source_view = None
        if view is not None:
            source_view = parameter_like(view, source) if is_copy else tensor
        return cls(key, source, tensor, indices, source_view)

    @property
    def is_copy(self) -> bool:
        """Whether the tensor is a copy, not a view."""
        return self.source_view is not self.tensor

    def pull(self, *, remember: bool) -> None:
        """Copy the full-size weights in; `remember` keeps their value to detect changes."""
        with torch.no_grad():
            if self.source_view is None:
                self.tensor.copy_(take_slice(self.source, self.indices))
            else:
                self.tensor.view(self.source_view.shape).copy_(self.source_view)
            self.last_pulled = self.tensor.detach().clone() if remember else None

    def push(self) -> None:
        """Copy the weights back."""
        with torch.no_grad():
            if self.source_view is None:
                put_slice(self.source, self.indices, self.tensor)
            else:
                self.source_view.copy_(self.tensor.view(self.source_view.shape))

    @property
    def changed(self) -> bool:
        """Whether a copy was changed since it was brought up to date.

        Compares values: torch's version counters do not count all changes.
        """
        if self.last_pulled is None:
            return False
        return not torch.equal(self.tensor, self.last_pulled)

    @property
    def outdated(self) -> bool:
        """Whether the full-size weights have changed since this copy was brought up to date."""
        if self.last_pulled is None:
            return False
        current = take_slice(self.source, self.indices)
        return not torch.equal(current, self.last_pulled)


@dataclass
class SharedSubmodel:
    """A submodel that shares storage with the elastic model."""

    net: nn.Module
    slices: dict[str, TensorSlice]
    exposed: bool = False
    """Whether the user has the module, and may change its copies at any time."""
    size: int = field(init=False)
    """The number of elements of all tensors."""
    copies: list[TensorSlice] = field(init=False)
    trainable: list[TensorSlice] = field(init=False)
    _viewed_copies: list[Tensor] = field(init=False)
    """Copies in the shape of their source view; with `_source_views`, arguments of one call."""
    _source_views: list[Tensor] = field(init=False)
    _other_copies: list[TensorSlice] = field(init=False)
    """Copies of what no view can express."""

    def __post_init__(self) -> None:
        slices = self.slices.values()
        self.size = sum(part.tensor.numel() for part in slices)
        self.copies = [part for part in slices if part.is_copy]
        self.trainable = [part for part in slices if part.tensor.requires_grad]
        self._viewed_copies = []
        self._source_views = []
        self._other_copies = []
        for part in self.copies:
            if part.source_view is None:
                self._other_copies.append(part)
            else:
                copied = part.tensor.detach().view(part.source_view.shape)
                self._viewed_copies.append(copied)
                self._source_views.append(part.source_view.detach())

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        for part in self.trainable:
            part.tensor.grad = None

    @torch.no_grad()
    def pull(self) -> None:
        """Bring all copies up to date."""
        if self.exposed:
            for part in self.copies:
                part.pull(remember=True)
            return
        if self._viewed_copies:
            torch._foreach_copy_(self._viewed_copies, self._source_views)
        for part in self._other_copies:
            part.pull(remember=False)

    def push_statistics(self) -> None:
        """Copy back buffers, which a forward pass changes in training."""
        for part in self.copies:
            if not isinstance(part.tensor, nn.Parameter):
                part.push()
