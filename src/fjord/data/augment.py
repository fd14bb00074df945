"""What a model sees of stored images: cropped, flipped and scaled, a whole batch at once.

Letters of the names: B examples, C channels, H rows, W columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomCropFlip:
    """Square crops, mirrored half the time in training; the centre in tests; normalised in both.

    `mean` and `std` are of pixel values between 0 and 1, one for each channel.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x_BCHW: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a batch of stored bytes as the model takes it."""
        return self.normalised(
            self.centre(x_BCHW) if generator is None else self.random(x_BCHW, generator)
        )

    def random(self, x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        """Crop each image at a place of its own, and mirror it or not."""
        count, _, height, width = x_BCHW.shape
        tops = torch.randint(height - self.size + 1, (count,), generator=generator)
        lefts = torch.randint(width - self.size + 1, (count,), generator=generator)
        mirrored = torch.randint(2, (count,), generator=generator, dtype=torch.bool)
        places = x_BCHW.unfold(2, self.size, 1).unfold(
            3, self.size, 1
        )  # a view: every crop of every image
        cropped = places[torch.arange(count), :, tops, lefts]
        return torch.where(mirrored[:, None, None, None], cropped.flip(3), cropped)

    def centre(self, x_BCHW: Tensor) -> Tensor:
        """Crop the middle."""
        top, left = ((side - self.size) // 2 for side in x_BCHW.shape[2:])
        return x_BCHW[:, :, top : top + self.size, left : left + self.size]

    def normalised(self, x_BCHW: Tensor) -> Tensor:
        """Return floats of mean 0 and deviation 1."""
        mean, std = (torch.tensor(values)[:, None, None] * 255 for values in (self.mean, self.std))
        return x_BCHW.float().sub_(mean).div_(std)


@dataclass(frozen=True)
class ScalePixels:
    """Bytes become floats from 0 to 1."""

    def __call__(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a batch of stored bytes as the model takes it."""
        return inputs.float().div_(255)
