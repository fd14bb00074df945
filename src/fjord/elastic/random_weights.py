"""A copy of a model with random weights, on which a plan is proved."""

import torch
from torch import Tensor, nn

from fjord.core.seeding import derive_seed
from fjord.elastic.indexing import owned_copy
from fjord.elastic.module_tensors import copy_module, named_tensors


def with_random_weights(model: nn.Module, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """Return a copy in this precision and in evaluation mode, whose weights make a cut visible."""
    copies = {}
    for name, tensor in named_tensors(model).items():
        copies[name] = owned_copy(tensor, tensor)
    twin = copy_module(model, copies).to(dtype).eval()
    generator = torch.Generator().manual_seed(derive_seed(seed, "proof"))
    with torch.no_grad():
        for tensor in named_tensors(twin).values():
            if tensor.is_floating_point() and not _varies_in_rows(tensor):
                _randomise(tensor, generator)
    return twin


def _varies_in_rows(tensor: Tensor) -> bool:
    """Return whether a matrix has random values already."""
    if tensor.dim() <= 1 or tensor[0].numel() <= 1:
        return False
    return float(tensor[0].std()) > 1e-6


def _randomise(tensor: Tensor, generator: torch.Generator) -> None:
    """Draw a tensor anew whose values are all alike (biases and norms start at 0, 1 or 1e-6)."""
    noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    noise = noise.to(tensor.device)
    if not isinstance(tensor, nn.Parameter) and bool((tensor >= 0).all()):
        tensor.copy_(noise.abs() + 0.5)  # a variance must stay positive
    elif bool((tensor == 1).all()):
        tensor.copy_(0.3 * noise + 1)
    elif tensor.dim() <= 1:
        tensor.copy_(0.3 * noise)
    else:
        tensor.copy_(0.1 * noise)
