"""How stored images become model inputs: cropped, flipped and scaled, a whole batch at once.

Letters of the names: B examples, C channels, H rows, W columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_PIXEL = 255


@dataclass(frozen=True)
class RandomCropFlip:
    """Square crops, mirrored half the time in training; the centre in tests; normalised in both.

    `mean` and `std` are of pixel values between 0 and 1, one for each channel.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x_BCHW: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a batch of stored bytes as model inputs."""
        if generator is None:
            cropped_BCHW = self.center_crop(x_BCHW)
        else:
            cropped_BCHW = self.random_crop(x_BCHW, generator)
        return self.normalize_pixels(cropped_BCHW)

    def random_crop(self, x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        """Crop each image at a random place, and mirror it or not."""
        count, _, height, width = x_BCHW.shape
        num_tops = height - self.size + 1
        num_lefts = width - self.size + 1
        tops = torch.randint(num_tops, (count,), generator=generator)
        lefts = torch.randint(num_lefts, (count,), generator=generator)
        mirrored = torch.randint(
            2,
            (count,),
            generator=generator,
            dtype=torch.bool,
        )
        rows = x_BCHW.unfold(2, self.size, 1)
        all_crops = rows.unfold(3, self.size, 1)  # a view: every crop of every image
        images = torch.arange(count)
        cropped_BCHW = all_crops[images, :, tops, lefts]
        return torch.where(mirrored[:, None, None, None], cropped_BCHW.flip(3), cropped_BCHW)

    def center_crop(self, x_BCHW: Tensor) -> Tensor:
        """Crop the middle of each image."""
        height, width = x_BCHW.shape[2:]
        top = (height - self.size) // 2
        left = (width - self.size) // 2
        rows = slice(top, top + self.size)
        columns = slice(left, left + self.size)
        return x_BCHW[:, :, rows, columns]

    def normalize_pixels(self, x_BCHW: Tensor) -> Tensor:
        """Return floats of mean 0 and standard deviation 1."""
        mean = torch.tensor(self.mean)[:, None, None] * MAX_PIXEL
        std = torch.tensor(self.std)[:, None, None] * MAX_PIXEL
        return x_BCHW.float().sub_(mean).div_(std)


@dataclass(frozen=True)
class ScalePixels:
    """Turns bytes into floats from 0 to 1."""

    def __call__(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a batch of stored bytes as model inputs."""
        return inputs.float().div_(MAX_PIXEL)
