"""The two-layer linear network of Theorem 1."""

import torch
from torch import nn


def two_layer_linear(
    inputs: int, outputs: int, generator: torch.Generator | None = None
) -> nn.Module:
    """Return two linear layers without bias or activation and min(inputs, outputs) hidden units, drawn normal."""
    hidden = min(inputs, outputs)
    net = nn.Sequential(
        nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, outputs, bias=False)
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net
