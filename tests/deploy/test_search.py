"""Widths by layer under a budget, compared with trying everything."""

import math
from itertools import product

import pytest
import torch
from searched import LIMIT, X, mlp, quality, trained
from torch import nn

import fjord
from fjord.core.width import parse_width
from fjord.deploy.limits import CostLimits, parse_limit
from fjord.elastic.footprint import submodel_bytes


@pytest.mark.parametrize(
    "limit", [{"macs": "60%"}, {"bytes": "70%"}, {"macs": "60%", "bytes": "1kB"}]
)
def test_a_small_model_is_searched_as_if_everything_was_tried(limit):
    model = trained(9, 6)
    layers = ["0", "2"]
    best = {}
    full = {"macs": 6 * 9 + 9 * 6 + 6 * 4, "bytes": 4 * (6 * 9 + 9 + 9 * 6 + 6 + 6 * 4 + 4)}
    most = {name: parse_limit(name, text, full[name]) for name, text in limit.items()}
    for pair in product(("1/3", "2/3", "1"), repeat=2):
        net = model.cut(dict(zip(layers, pair, strict=True)))
        a, b = net[0].out_features, net[2].out_features
        cost = {"macs": 6 * a + a * b + b * 4, "bytes": 4 * (6 * a + a + a * b + b + b * 4 + 4)}
        if all(cost[name] <= most[name] for name in limit):
            best[pair] = quality(net)
    found = fjord.search_widths(model, quality, LIMIT(**limit))
    winner = max(best, key=best.get)
    assert found.exhaustive
    assert found.evaluated == len(best)
    assert found.score == best[winner]
    assert model.plan.family_widths(found.widths) == {
        **model.plan.family_widths(dict(zip(layers, winner, strict=True))),
        "": max(map(parse_width, winner)),
    }
    shared = {w: best[w, w] for w in ("1/3", "2/3", "1") if (w, w) in best}
    assert found.uniform == parse_width(max(shared, key=shared.get))
    assert found.uniform_score == max(shared.values()) <= found.score


def test_what_is_too_much_to_try_is_evolved_and_never_worse_than_one_width_for_all():
    widths = ("1/4", "1/2", "3/4", "1")
    model = trained(9, 8, 7, 6, widths=widths)
    most = submodel_bytes(model, "1") / 2
    choices = [
        dict(zip(("0", "2", "4", "6"), choice, strict=True)) for choice in product(widths, repeat=4)
    ]
    everything = [
        quality(model.cut(choice)) for choice in choices if submodel_bytes(model, choice) <= most
    ]
    for seed in range(5):
        found = fjord.search_widths(model, quality, LIMIT(bytes="50%"), evaluations=60, seed=seed)
        assert not found.exhaustive
        assert found.evaluated <= 60
        assert found.score >= found.uniform_score
        assert sum(s > found.score for s in everything) <= len(everything) / 50, (
            "among the best two in a hundred"
        )
        assert found.costs["bytes"] <= most
        assert quality(model.at(found.widths)) == found.score
    assert found == fjord.search_widths(
        model, quality, LIMIT(bytes="50%"), evaluations=60, seed=seed
    )


def test_statistics_are_measured_inside_and_kept_for_the_best_alone(tmp_path):
    model = trained(12, 12, norm=True)
    with pytest.raises(ValueError, match="batches: a model with BatchNorm needs"):
        fjord.search_widths(model, quality, LIMIT(macs="50%"))
    before = {key: t.clone() for key, t in model.state_dict().items()}
    found = fjord.search_widths(
        model, lambda net: quality(net), LIMIT(macs="50%"), batches=X.split(16)
    )
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())
    assert quality(model.at(found.widths)) == found.score
    mixed = {"0": "1", "3": "1/3"}
    fjord.recalibrate(model, mixed, X.split(16))
    model.save(tmp_path / "net.safetensors")
    again = fjord.load_model(tmp_path / "net.safetensors", mlp(12, 12, norm=True).eval())
    assert torch.equal(again.at(mixed)(X), model.at(mixed)(X))
    assert torch.equal(again.at(found.widths)(X), model.at(found.widths)(X))
    assert torch.equal(
        fjord.load_model(tmp_path / "net.safetensors", mlp(12, 12, norm=True).eval(), width=mixed)(
            X
        ),
        model.at(mixed)(X),
    )


def test_a_score_that_is_no_number_is_the_worst():
    model = trained(9, 6, epochs=1)

    def spoilt(net):
        return math.nan if net[0].out_features == 6 else net[0].out_features / 9

    found = fjord.search_widths(model, spoilt, LIMIT(macs="100%"))
    assert found.score == found.uniform_score == 1.0
    assert fjord.search_widths(model, lambda net: math.nan, LIMIT(macs="100%")).score == -math.inf


def test_one_tensor_is_a_request_of_one_input():
    model = fjord.elasticize(
        nn.Sequential(nn.Conv2d(1, 10, 3), nn.BatchNorm2d(10), nn.Conv2d(10, 4, 1)),
        torch.randn(2, 1, 4, 4),
    )
    images = torch.randn(2, 1, 4, 4)
    both = [
        fjord.search_widths(model, lambda net: 1.0, CostLimits(i, macs="50%"), batches=[images])
        for i in (images, (images,))
    ]
    assert both[0].costs == both[1].costs
    assert [row.macs for row in fjord.measure_latencies(model, images)] == [
        row.macs for row in fjord.measure_latencies(model, (images,))
    ]


def test_time_can_be_the_limit():
    model = trained(9, 6, epochs=1)
    found = fjord.search_widths(model, quality, LIMIT(latency="10s"))
    assert found.score == max(found.score, found.uniform_score)
    with pytest.raises(
        ValueError, match=r"latency=1us: the smallest submodel needs .*s, give at least that"
    ):
        fjord.search_widths(model, quality, LIMIT(latency="1us"))


def test_bad_budgets_say_what_would_do():
    model = trained(9, 6, epochs=1)
    smallest = 6 * 3 + 3 * 2 + 2 * 4
    with pytest.raises(
        ValueError, match=f"macs=31: the smallest submodel needs {smallest}, give at least that"
    ):
        fjord.search_widths(model, quality, LIMIT(macs="31"))
    fjord.search_widths(model, quality, LIMIT(macs=str(smallest)))
    for bad in ("-5%", "0", "many", "5 parsecs", "5MB", ""):
        with pytest.raises(ValueError, match=r"macs=.*50% or 200M"):
            LIMIT(macs=bad)
    with pytest.raises(ValueError, match="give at least one of macs, bytes and latency"):
        LIMIT()
    with pytest.raises(ValueError, match="evaluations=0"):
        fjord.search_widths(model, quality, LIMIT(macs="50%"), evaluations=0)
