"""Augmentation, against one image after the other."""

import torch
from folders import pictures
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.augment import RandomCropFlip, ScalePixels

CROP = RandomCropFlip(24, mean=(0.5, 0.25, 0.1), std=(0.2, 0.3, 0.4))


def crop_literally(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Crop, mirror and normalise one image after the other."""
    tops, lefts = (torch.randint(9, (len(images),), generator=generator) for _ in range(2))
    mirrored = torch.randint(2, (len(images),), generator=generator)
    found = []
    for image, top, left, mirror in zip(images, tops, lefts, mirrored, strict=True):
        crop = (
            torch.stack([row[:, left : left + 24] for row in image[:, top : top + 24].unbind(1)], 1)
            / 255
        )
        crop = torch.stack([crop[..., 23 - i] for i in range(24)], -1) if mirror else crop
        found.append(
            torch.stack([(c - m) / s for c, m, s in zip(crop, CROP.mean, CROP.std, strict=True)])
        )
    return torch.stack(found)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 1000))
def test_augmentation_of_a_batch_equals_one_image_after_the_other(count: int, seed: int) -> None:
    images = torch.randint(
        256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    before = images.clone()
    found, wanted = (f(images, torch.Generator().manual_seed(seed)) for f in (CROP, crop_literally))
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.equal(images, before)


def test_every_crop_and_both_directions_occur() -> None:
    image = torch.from_numpy(pictures(1, 32, 32)[0]).expand(4000, 3, 32, 32)
    found = CROP.random_crop(image, torch.Generator().manual_seed(0))
    assert len({crop[0, :2].numpy().tobytes() for crop in found}) == 9 * 9 * 2


def test_tests_see_the_centre_and_nothing_random() -> None:
    images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    wanted = images[:, :, 4:28, 4:28] / 255 - torch.tensor(CROP.mean)[:, None, None]
    assert torch.allclose(
        CROP(images, None), wanted / torch.tensor(CROP.std)[:, None, None], atol=1e-5
    )


def test_characters_are_only_scaled() -> None:
    images = torch.randint(256, (5, 1, 28, 28), dtype=torch.uint8)
    assert torch.equal(ScalePixels()(images, torch.Generator()), images / 255)
    assert torch.equal(ScalePixels()(images, None), images / 255)
