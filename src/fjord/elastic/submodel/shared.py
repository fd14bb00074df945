"""Submodels on the storage of the full-size weights, tensor by tensor."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fjord.elastic.plan import AxisIndices, put_slice, strided_view, take_slice


@dataclass
class TensorSlice:
    """One tensor of a submodel and where it lies in the full-size one.

    Where strides can express the slice, `window` is a view of it. A window of the tensor's own shape is the
    tensor; else (LSTM gates, joined layers) the tensor is a copy.
    """

    key: str
    source: Tensor
    tensor: Tensor
    indices: AxisIndices
    window: Tensor | None
    pulled: Tensor | None = None
    """What a copy held when it was last brought up to date."""

    @classmethod
    def of(cls, key: str, source: Tensor, indices: AxisIndices) -> "TensorSlice":
        """Cut one part out of a full-size tensor."""
        view = strided_view(source.detach(), indices)
        cut = take_slice(source.detach(), indices) if view is None else view
        shape = [n if i is None else len(i) for n, i in zip(source.shape, indices, strict=True)]
        if list(cut.shape) != shape:
            cut = cut.reshape(
                shape
            ).clone()  # runs of one unit: a view even then, but the part is a copy
        tensor = _like(source, cut)
        return cls(
            key,
            source,
            tensor,
            indices,
            tensor if cut is view else None if view is None else _like(source, view),
        )

    @property
    def is_copy(self) -> bool:
        """Whether the tensor is a copy, not a view."""
        return self.window is not self.tensor

    def pull(self, *, remember: bool) -> None:
        """Copy the full-size weights in."""
        with torch.no_grad():
            if self.window is None:
                self.tensor.copy_(take_slice(self.source, self.indices))
            else:
                self.tensor.view(self.window.shape).copy_(self.window)
            self.pulled = self.tensor.detach().clone() if remember else None

    def push(self) -> None:
        """Copy the weights back."""
        with torch.no_grad():
            if self.window is None:
                put_slice(self.source, self.indices, self.tensor)
            else:
                self.window.copy_(self.tensor.view(self.window.shape))

    @property
    def changed(self) -> bool:
        """Whether a copy was changed since it was brought up to date; by content, as not all changes are counted."""
        return self.pulled is not None and not torch.equal(self.tensor, self.pulled)

    @property
    def outdated(self) -> bool:
        """Whether the full-size weights have changed since this copy was brought up to date."""
        return self.pulled is not None and not torch.equal(
            take_slice(self.source, self.indices), self.pulled
        )


def _like(source: Tensor, cut: Tensor) -> Tensor:
    return nn.Parameter(cut, source.requires_grad) if isinstance(source, nn.Parameter) else cut


@dataclass
class SharedSubmodel:
    """A submodel that shares storage with the elastic model."""

    net: nn.Module
    parts: dict[str, TensorSlice]
    held: bool = False
    """Whether it was given to the user, who may change it in any way."""
    copies: list[TensorSlice] = field(init=False)
    size: int = field(init=False)
    trained: list[TensorSlice] = field(init=False)
    _copied: tuple[list[Tensor], list[Tensor]] = field(init=False)
    """Copies and the windows they are copies of, for one call over all of them."""
    _odd: list[TensorSlice] = field(init=False)
    """Copies of what no window can show."""

    def __post_init__(self) -> None:
        self.copies = [part for part in self.parts.values() if part.is_copy]
        self.size = sum(part.tensor.numel() for part in self.parts.values())
        self.trained = [part for part in self.parts.values() if part.tensor.requires_grad]
        self._odd = [part for part in self.copies if part.window is None]
        pairs = [
            (part.tensor.detach(), part.window.detach())
            for part in self.copies
            if part.window is not None
        ]
        self._copied = (
            [to.view(window.shape) for to, window in pairs],
            [window for _, window in pairs],
        )

    def forget_gradients(self) -> None:
        """Set all gradients to None."""
        for part in self.trained:
            part.tensor.grad = None

    @torch.no_grad()
    def pull(self) -> None:
        """Bring all copies up to date."""
        if self._copied[0] and not self.held:
            torch._foreach_copy_(*self._copied)
        for part in self.copies if self.held else self._odd:
            part.pull(remember=self.held)

    def push_statistics(self) -> None:
        """Copy back buffers, which a forward pass changes in training."""
        for part in self.copies:
            if not isinstance(part.tensor, nn.Parameter):
                part.push()
