"""The CNN of the FEMNIST task (appendix, datasets and models)."""

from torch import nn


def femnist_cnn(num_classes: int = 62) -> nn.Module:
    """Return two 5x5 convolutions (10 and 20 filters), each pooled 2x2, and a dense output."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20 * 4 * 4, num_classes),
    )
