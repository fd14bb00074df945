"""The two-layer linear network of Theorem 1."""

import torch
from torch import nn


def two_layer_linear(
    inputs: int,
    outputs: int,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Return two linear layers without bias or activation, with normally distributed weights.

    There are min(inputs, outputs) hidden units.
    """
    hidden = min(inputs, outputs)
    model = nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        nn.Linear(hidden, outputs, bias=False),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            weights = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(weights)
    return model
