"""A network with BatchNorm that learns stripes in noise, for tests of trained models in use."""

from functools import partial

import torch
from torch import nn

import fjord

WIDTHS = fjord.uniform_widths(5).widths


EXAMPLE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def stripes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    waves = torch.sin(torch.arange(8.0) * (labels[:, None] + 1) / 2)
    images = waves[:, None, None, :] + 0.9 * torch.randn(count, 1, 8, 8, generator=generator)
    return images, labels


class Deeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10)
        self.two, self.norm2 = nn.Conv2d(10, 20, 3, padding=1), nn.BatchNorm2d(20)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        y = torch.relu(self.norm1(self.one(x)))
        return self.head(torch.relu(self.norm2(self.two(y))).mean((2, 3)))


def train_stripes():
    """A network with BatchNorm that has learned stripes in noise at the widths of uniform-5."""
    torch.manual_seed(0)
    model = fjord.elasticize(Deeper(), EXAMPLE)
    images, labels = stripes(1024, 0)
    data = list(zip(images.split(32), labels.split(32), strict=True))
    fjord.fit(model, data, partial(torch.optim.SGD, lr=0.05, momentum=0.9), epochs=6, seed=0)
    return model.eval()
