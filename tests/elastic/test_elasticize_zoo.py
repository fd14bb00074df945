"""A sample of models from timm and torchvision, with small images and few blocks.

`make zoo` runs the whole list at full size.
"""

import importlib.util
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks import zoo

if not (importlib.util.find_spec("timm") and importlib.util.find_spec("torchvision")):
    pytest.skip(
        "timm and torchvision are not installed; make test installs them", allow_module_level=True
    )


class Sample(NamedTuple):
    """How a model is made smaller: its images, its own options, and the blocks kept of a stage."""

    size: int = 64
    options: dict[str, Any] = {}
    kept: dict[str, int] = {}


STAGES = {"stage2": 2, "stage3": 2, "stage4": 2}
SAMPLE = {
    "tv:resnet18": Sample(),
    "tv:mobilenet_v3_small": Sample(),
    "tv:shufflenet_v2_x0_5": Sample(kept=STAGES),
    "vit_tiny_patch16_224": Sample(options={"img_size": 64, "depth": 2}),
    "convnext_atto": Sample(options={"depths": (1, 1, 2, 1)}),
}


def small(name: str) -> zoo.BuiltModel:
    size, options, kept = SAMPLE[name]
    model, (images,) = zoo.build_model(name, **options)
    for path, count in kept.items():
        model.set_submodule(path, model.get_submodule(path)[:count])
    return model, (images[..., :size, :size],)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_foreign_model_is_cut_in_half(name):
    threads = torch.get_num_threads()
    result = zoo.try_model(name, small)
    torch.set_num_threads(threads)
    assert result.failure == ""
    assert 0.15 < result.share < 0.6


def test_the_list_is_long_and_has_no_doubles():
    names = zoo.MODEL_LIST.read_text().split()
    assert len(set(names)) == len(names) >= 60
    assert SAMPLE.keys() <= set(names)
