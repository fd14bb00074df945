"""BatchNorm layers per width, statistics per width, and shared ones."""

import pytest
import torch
from motifs import images
from tiny_models import elastic_motif

import fjord


def test_whole_norm_layers_are_kept_per_width():
    elastic = elastic_motif()
    assert elastic.tensors["bn.weight@2/5"].shape == (4,)
    elastic.train().at("2/5")(*images())
    assert int(elastic.tensors["bn.num_batches_tracked@2/5"]) == 1
    assert int(elastic.tensors["bn.num_batches_tracked@3/5"]) == 0
    assert "bn.weight" not in elastic.tensors


@pytest.mark.parametrize(
    ("norms", "affine", "statistics"), [("statistics", False, True), ("shared", False, False)]
)
def test_norms_can_be_shared(norms, affine, statistics):
    elastic = elastic_motif(norms=norms)
    assert ("bn.weight@2/5" in elastic.tensors) == affine
    assert ("bn.running_mean@2/5" in elastic.tensors) == statistics
    before = elastic.state_dict()[
        "bn.running_mean@3/5" if statistics else "bn.running_mean"
    ].clone()
    elastic.train().at("2/5")(*images())
    after = elastic.state_dict()["bn.running_mean@3/5" if statistics else "bn.running_mean"]
    assert torch.equal(before, after) == statistics
    assert torch.equal(before[4:], after[4:])


def test_a_width_outside_the_space_warns_and_takes_the_next_larger_norm():
    elastic = elastic_motif()
    with torch.no_grad():
        elastic.tensors["bn.weight@3/5"].fill_(7)
    with pytest.warns(
        UserWarning, match=r"width 1/2 is not one the model was trained at .* recalibration"
    ):
        net = elastic.cut("1/2")
    assert torch.equal(net.bn.weight, torch.full((5,), 7.0, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"1/2 is not one of .* use cut"):
        elastic.at("1/2")


def test_norms_of_a_width_above_all_trained_ones_do_not_exist():
    elastic = elastic_motif(widths=fjord.WidthSpace.of(["1/5", "2/5"]))
    with pytest.raises(ValueError, match=r"above the largest trained width 2/5"):
        elastic.cut("3/5")
