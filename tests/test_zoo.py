"""A sample of models no one here wrote; `make zoo` runs the whole list."""

import importlib.util

import pytest
import torch
from benchmarks import zoo

if not (importlib.util.find_spec("timm") and importlib.util.find_spec("torchvision")):
    pytest.skip("timm and torchvision are not installed; make test installs them", allow_module_level=True)

SAMPLE = [
    "tv:resnet18",
    "tv:mobilenet_v3_small",
    "tv:shufflenet_v2_x0_5",
    "vit_tiny_patch16_224",
    "mobilevit_xxs",
    "convnext_atto",
    "regnety_002",
    "ghostnet_100",
    "levit_128s",
    "xcit_nano_12_p16_224",
    "pvt_v2_b0",
    "resmlp_12_224",
]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_foreign_model_is_cut_in_half(name):
    threads = torch.get_num_threads()
    result = zoo.outcome(name)
    torch.set_num_threads(threads)
    assert result.failure == ""
    assert 0.15 < result.share < 0.6


def test_the_list_is_long_and_has_no_doubles():
    names = zoo.LIST.read_text().split()
    assert len(set(names)) == len(names) >= 60
    assert set(SAMPLE) <= set(names)
