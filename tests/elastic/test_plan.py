"""Widths by layer, random units, rounding and freezing."""

import json

import oracles
import pytest
import torch
from motifs import MOTIFS, Residual, images
from tiny_models import elastic_motif

import fjord
from fjord.elastic.plan import WidthPlan
from fjord.models import cifar_resnet18


def test_each_layer_can_have_a_width_of_its_own():
    elastic = fjord.elasticize(cifar_resnet18(), torch.randn(2, 3, 16, 16))
    net = elastic.cut({"*": "4/5", "layer3": "2/5"})
    assert net.layer3[0].conv1.weight.shape[:2] == (103, 103)
    assert net.layer3[1].conv2.weight.shape[:2] == (103, 103)
    assert net.layer4[0].conv1.weight.shape[:2] == (410, 103)
    assert net.layer3[0].bn1.num_features == 103
    assert elastic.at({"layer3": "2/5"}).conv1.weight.shape[0] == 64
    assert torch.isfinite(net.eval()(torch.randn(2, 3, 16, 16))).all()


def test_widths_by_layer_equal_masking():
    motif = MOTIFS["concatenation"]
    model = oracles.randomise(motif.build()).eval()
    elastic = fjord.elasticize(model, motif.inputs())
    width = {"grow1": "2/5", "*": "4/5"}
    mask = oracles.masks(model, elastic.plan, elastic.plan.leading_units(width))
    expected = oracles.masked_output(model, oracles.all_tensors(model), mask, motif.inputs())
    assert oracles.close(elastic.cut(width).eval()(*motif.inputs()), expected)


def test_an_unknown_layer_is_refused_and_the_known_ones_named():
    with pytest.raises(
        ValueError, match=r"layer 'layer9' has no elastic units; layers that have: .*inner"
    ):
        elastic_motif().cut({"layer9": "2/5"})


def test_two_layers_that_share_units_cannot_differ():
    with pytest.raises(ValueError, match=r"'stem' and 'back' share the units of stem.weight\[0\]"):
        elastic_motif().cut({"stem": "1/5", "back": "2/5"})


def test_random_units_give_the_masked_model_too():
    model = oracles.randomise(Residual()).eval()
    elastic = fjord.elasticize(model, images(), widths=fjord.WidthSpace.of(["1"]))
    kept = elastic.plan.random_units("2/5", torch.Generator().manual_seed(3))
    assert {name: len(units) for name, units in kept.items()} == {
        "stem.weight[0]": 4,
        "inner.weight[0]": 6,
    }
    expected = oracles.masked_output(
        model, oracles.all_tensors(model), oracles.masks(model, elastic.plan, kept), images()
    )
    assert oracles.close(elastic.cut("2/5", kept).eval()(*images()), expected)


def test_rounding_makes_channels_a_multiple():
    elastic = fjord.elasticize(cifar_resnet18(), torch.randn(2, 3, 16, 16), round_to=8)
    sizes = {p.shape[0] for n, p in elastic.cut("1/5").named_parameters() if "conv" in n}
    assert sizes == {16, 32, 56, 104}


def test_freezing_keeps_a_layer_whole():
    elastic = fjord.elasticize(oracles.randomise(Residual()), images(), freeze="inner")
    assert elastic.cut("1/5").inner.weight.shape[:2] == (15, 2)
    assert "frozen by the user (inner)" in elastic.summary()


def test_the_plan_survives_json():
    for name in ("paper resnet18", "concatenation", "channels-last flatten", "attention"):
        motif = MOTIFS[name]
        plan = fjord.elasticize(motif.build().double(), motif.inputs()).plan
        assert WidthPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
