"""BatchNorm statistics of widths outside P, and of trained ones."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from stripes import EXAMPLE, stripes, train_stripes
from torch import nn

import fjord
from fjord.core.width import parse_width
from fjord.training.evaluate import score_network


@pytest.fixture(scope="module")
def trained():
    return train_stripes()


class Net(nn.Module):
    """A convolution with BatchNorm; with `fixed`, a size in `forward`: it is cut by its graph."""

    def __init__(self, fixed: bool = False) -> None:
        super().__init__()
        self.fixed = fixed
        self.conv, self.norm, self.drop = nn.Conv2d(1, 20, 3), nn.BatchNorm2d(20), nn.Dropout(0.5)
        self.spots = nn.Dropout2d(0.5)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        y = self.norm(self.conv(self.spots(self.drop(x))))
        if self.fixed:
            y = y.view(-1, 20, 36).view(-1, 20, 6, 6)
        return self.head(self.drop(torch.relu(y).mean((2, 3))))


def batches(count=3, size=8):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 1, 8, 8, generator=generator) * 3 + 1 for _ in range(count)]


def by_hand(model, units, inputs):
    """The mean over batches of the mean and the unbiased variance of what the first units see."""
    weight, bias = model.tensors["conv.weight"][:units], model.tensors["conv.bias"][:units]
    seen = [F.conv2d(x, weight, bias).detach() for x in inputs]
    return torch.stack([y.mean((0, 2, 3)) for y in seen]).mean(0), torch.stack(
        [y.var((0, 2, 3)) for y in seen]
    ).mean(0)


@pytest.mark.parametrize(
    ("norms", "fixed"),
    [("layers", False), ("statistics", False), ("shared", False), ("statistics", True)],
)
def test_recalibrated_statistics_are_the_mean_over_batches(norms, fixed, tmp_path):
    model = fjord.elasticize(Net(fixed), EXAMPLE, norms=norms).eval()
    assert model.blueprint.route == ("graph" if fixed else "module")
    before = {key: t.clone() for key, t in model.state_dict().items()}
    fjord.recalibrate(model, "1/2", [(x, "labels are not looked at") for x in batches()])
    net = model.at("1/2")
    mean, var = by_hand(model, 10, batches())
    torch.testing.assert_close(net.get_buffer("norm.running_mean"), mean)
    torch.testing.assert_close(net.get_buffer("norm.running_var"), var)
    assert int(net.get_buffer("norm.num_batches_tracked")) == 3
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items()), (
        "no other width is touched"
    )
    model.save(tmp_path / "net.safetensors")
    read = partial(fjord.load_model, tmp_path / "net.safetensors", Net(fixed).eval(), EXAMPLE)
    answer = net(EXAMPLE)
    for again in (model.cut("1/2"), read().at("1/2"), read(width="1/2")):
        assert torch.equal(again(EXAMPLE), answer)


@pytest.mark.parametrize("norms", ["layers", "statistics", "shared"])
def test_a_trained_width_gets_its_own_statistics_replaced(norms):
    model = fjord.elasticize(Net(), EXAMPLE, norms=norms).eval()
    others = model.at("3/5")(EXAMPLE)
    fjord.recalibrate(model, "2/5", batches())
    mean, _ = by_hand(model, 8, batches())
    torch.testing.assert_close(model.at("2/5").get_buffer("norm.running_mean"), mean)
    assert torch.equal(model.at("3/5")(EXAMPLE), others)
    assert bool(model.calibrated) == (norms == "shared")


def test_widths_outside_p_are_refused_until_they_are_measured_and_after_other_weights_came():
    model = fjord.elasticize(Net(), EXAMPLE)
    with pytest.raises(ValueError, match=r"width 1/2 is not one of .* fjord.recalibrate"):
        model.at("1/2")
    fjord.recalibrate(model, "1/2", batches())
    assert model.at("1/2") is model.at("1/2")
    model.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="recalibrate"):
        model.at("1/2")
    plain = fjord.elasticize(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 4)
    )
    fjord.recalibrate(plain, "1/2", [])  # without BatchNorm there is nothing to do
    plain.at("1/2")


def test_bad_batches_are_refused_and_leave_the_model_as_it_was():
    model = fjord.elasticize(Net(), EXAMPLE)
    with pytest.raises(ValueError, match="batches: there is nothing to measure on"):
        fjord.recalibrate(model, "1/2", [])
    with pytest.raises(ValueError, match="not finite"):
        fjord.recalibrate(model, "2/5", [EXAMPLE * torch.inf])
    assert not model.calibrated
    assert all(bool(t.isfinite().all()) for t in model.state_dict().values())


def test_a_width_between_two_trained_ones_scores_between_them_once_recalibrated(trained):
    images, labels = stripes(2000, 1)
    test = [(images, labels)]
    raw = score_network(trained.cut("1/2"), test)
    fjord.recalibrate(trained, "1/2", stripes(256, 2)[0].split(64))
    scores = fjord.evaluate(trained, test, ["2/5", "1/2", "3/5"])
    low, middle, high = (scores[parse_width(w)].loss for w in ("2/5", "1/2", "3/5"))
    assert high <= middle <= low, (low, middle, high)
    assert middle < raw.loss
