"""Widths by layer, BatchNorm per width, random units, rounding, and what the summary says."""

from fractions import Fraction
from functools import partial

import oracles
import pytest
import torch
from motifs import MOTIFS, Residual, images
from torch import Tensor, nn

import fjord
from fjord.models import cifar_resnet18


def make(name: str = "residual add", **options) -> fjord.ElasticModel:
    motif = MOTIFS[name]
    return fjord.elasticize(
        oracles.randomise(motif.build()), motif.inputs(), freeze=motif.freeze, **options
    )


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
        make().cut({"layer9": "2/5"})


def test_two_layers_that_share_units_cannot_differ():
    with pytest.raises(ValueError, match=r"'stem' and 'back' share the units of stem.weight\[0\]"):
        make().cut({"stem": "1/5", "back": "2/5"})


def test_whole_norm_layers_are_kept_per_width():
    elastic = make()
    assert elastic.tensors["bn.weight@2/5"].shape == (4,)
    elastic.train().at("2/5")(*images())
    assert int(elastic.tensors["bn.num_batches_tracked@2/5"]) == 1
    assert int(elastic.tensors["bn.num_batches_tracked@3/5"]) == 0
    assert "bn.weight" not in elastic.tensors


@pytest.mark.parametrize(
    ("norms", "affine", "statistics"), [("statistics", False, True), ("shared", False, False)]
)
def test_norms_can_be_shared(norms, affine, statistics):
    elastic = make(norms=norms)
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
    elastic = make()
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
    elastic = make(widths=fjord.WidthSpace.of(["1/5", "2/5"]))
    with pytest.raises(ValueError, match=r"above the largest trained width 2/5"):
        elastic.cut("3/5")


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


def test_switching_widths_needs_no_reloading():
    elastic = make("lstm, two layers").eval()
    (x,) = MOTIFS["lstm, two layers"].inputs()
    first = elastic.at("2/5")
    answer = first(x)
    elastic.at("1")(x)
    assert elastic.at("2/5") is first
    assert torch.equal(elastic.at("2/5")(x), answer)
    assert oracles.close(elastic.cut("2/5")(x), answer)


def test_the_summary_names_families_layers_and_reasons():
    text = make().summary()
    for words in (
        "inner.weight[0]",
        "stem, bn, back",
        "15",
        "model output",
        "kernel positions",
        "the model's own modules",
    ):
        assert words in text
    assert "not from its modules: Built by module" in make("sizes in forward").summary()


def test_state_goes_in_and_out_and_strange_state_is_refused():
    elastic, other = make(), make()
    state = {k: v + 1 for k, v in elastic.state_dict().items()}
    other.load_state_dict(state)
    assert all(torch.equal(state[k], v) for k, v in other.state_dict().items())
    with pytest.raises(ValueError, match=r"missing or unknown: stem\.bias"):
        other.load_state_dict({k: v for k, v in state.items() if k != "stem.bias"})
    with pytest.raises(ValueError, match=r"shapes do not match: stem.bias: \(3,\) for \(10,\)"):
        other.load_state_dict({**state, "stem.bias": torch.zeros(3)})


class Scaled(nn.Module):
    """The inner width stands in a Python number no rule can see: only a factory knows."""

    def __init__(self, inner: int = 10) -> None:
        super().__init__()
        self.first, self.head, self.scale = nn.Linear(6, inner), nn.Linear(inner, 3), 10 / 10

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x)) * self.scale


def test_a_factory_builds_submodels_itself():
    elastic = fjord.elasticize(
        Scaled(), torch.randn(2, 6), factory=lambda kept: Scaled(len(kept["first.weight[0]"]))
    )
    assert elastic.blueprint.route == "factory"
    assert isinstance(elastic.cut("2/5"), Scaled)
    assert elastic.cut("2/5").first.out_features == 4
    with pytest.raises(
        fjord.ElasticityError,
        match=r"factory: first.weight has shape \(10, 6\), the plan needs \(2, 6\)",
    ):
        fjord.elasticize(Scaled(), torch.randn(2, 6), factory=lambda kept: Scaled())


def test_training_by_hand_with_a_plain_torch_loop():
    elastic = make("attention")
    (x,) = MOTIFS["attention"].inputs()
    optimizer = fjord.SlicedOptimizer(elastic, partial(torch.optim.SGD, lr=0.01))
    losses = []
    for _ in range(30):
        losses.append(
            float(
                fjord.train_step(
                    elastic,
                    optimizer,
                    fjord.ordered_dropout(lambda a, b: a.square().mean()),
                    (x, x),
                    (Fraction(2, 5), Fraction(1)),
                )
            )
        )
    assert losses[-1] < 0.7 * losses[0]
