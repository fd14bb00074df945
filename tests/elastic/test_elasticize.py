"""Cases that once went wrong: each is a small model with the answer it must give."""

import copy
import math
from functools import partial

import oracles
import pytest
import torch
import torch.nn.functional as F
from motifs import MOTIFS
from torch import Tensor, nn

import fjord
from fjord.core.width import parse_width

SGD = partial(torch.optim.SGD, lr=0.1)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


class Fused(nn.Module):
    """Ordinary fused attention with sizes in `forward`: cut from its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Linear(5, 20)
        self.qkv = nn.Linear(20, 60)
        self.o = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.e(x)).view(b, t, 3, 5, 4).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1))


class Flat(nn.Module):
    """A size written in `forward` around any norm: cut from its graph."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 10, 3, padding=1)
        self.n = norm
        self.f = nn.Linear(160, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(F.adaptive_avg_pool2d(F.relu(self.n(self.c(x))), 4).view(-1, 160))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))


def test_a_head_used_in_training_alone_keeps_its_classes():
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 20)
            self.b = nn.Linear(20, 3)
            self.aux = nn.Linear(20, 3)
            self.unused = nn.Conv2d(4, 6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            h = F.relu(self.a(x))
            return (self.b(h), self.aux(h)) if self.training else (self.b(h),)

    elastic = fjord.elasticize(Auxiliary(), randn(8, 5))
    net = elastic.cut({"a": "2/5"})
    assert [tuple(out.shape) for out in net.train()(randn(4, 5))] == [(4, 3), (4, 3)]
    assert net.unused.weight.shape == (6, 4, 3, 3)
    assert "not used by the model" in elastic.summary()


def test_a_copied_elastic_model_trains_itself():
    elastic = fjord.elasticize(mlp(), randn(2, 6))
    elastic.at("2/5")
    twin = copy.deepcopy(elastic)
    before = twin.state_dict()["0.weight"].clone()
    fjord.fit(
        twin,
        [(randn(8, 6), torch.zeros(8, dtype=torch.long))],
        SGD,
        epochs=2,
        space=fjord.WidthSpace.of(["2/5"]),
    )
    assert not torch.equal(before, twin.state_dict()["0.weight"])
    assert torch.equal(before, elastic.state_dict()["0.weight"])


def test_a_detached_branch_stays_detached_in_a_graph_cut():
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 20)
            self.b = nn.Linear(20, 10)
            self.f = nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.f(torch.sigmoid(self.b(self.a(x).view(-1, 20).detach())))

    elastic = fjord.elasticize(Detached(), randn(2, 5))
    assert elastic.blueprint.route == "graph"
    net = elastic.at("2/5")
    net(randn(2, 5)).sum().backward()
    assert net.a.weight.grad is None
    assert net.b.weight.grad is not None


def test_no_grad_in_forward_is_not_lost_silently():
    class Stopped(Fused):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = self.e(x).mean()
            return super().forward(x) * scale

    with pytest.raises(fjord.ElasticityError, match=r"stops gradients with torch\.no_grad"):
        fjord.elasticize(Stopped(), randn(2, 4, 5))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_fused_optimizers_stay_inside_the_submodel(kind):
    elastic = fjord.elasticize(mlp(), randn(2, 6))
    before = elastic.state_dict()["2.weight"].clone()
    optimizer = fjord.SlicedOptimizer(elastic, partial(kind, lr=0.1, fused=True))
    width = parse_width("2/5")
    fjord.train_step(
        elastic,
        optimizer,
        fjord.ordered_dropout(),
        (randn(8, 6), torch.zeros(8, dtype=torch.long)),
        (width, width),
    )
    assert torch.equal(elastic.state_dict()["2.weight"][:, 8:], before[:, 8:])
    assert not torch.equal(elastic.state_dict()["2.weight"][:, :8], before[:, :8])


@pytest.mark.parametrize("norms", ["shared", "statistics"])
def test_statistics_of_a_norm_after_a_concatenation_are_kept(norms):
    motif = MOTIFS["concatenation"]
    elastic = fjord.elasticize(
        oracles.randomise(motif.build()), motif.inputs(), norms=norms
    ).train()
    key = "norm2.running_mean" + ("" if norms == "shared" else "@2/5")
    before = elastic.state_dict()[key].clone()
    elastic.at("2/5")(*motif.inputs())
    after = elastic.state_dict()[key].clone()
    assert not torch.equal(before, after)
    target = torch.zeros(3, dtype=torch.long)
    fjord.fit(
        elastic, [(motif.inputs()[0], target)], SGD, epochs=2, space=fjord.WidthSpace.of(["2/5"])
    )
    assert torch.equal(elastic.at("2/5").norm2.running_mean, elastic.cut("2/5").norm2.running_mean)
    assert not torch.equal(elastic.state_dict()[key], after)


def test_any_change_to_a_shared_submodel_is_kept():
    elastic = fjord.elasticize(MOTIFS["gru"].build(), MOTIFS["gru"].inputs())
    for parameter in elastic.at("2/5").parameters():
        parameter.data.zero_()
    assert all(float(p.detach().abs().sum()) == 0 for p in elastic.cut("2/5").parameters())
    for _, parameter in elastic.named_parameters():
        parameter.data.fill_(3)
    assert torch.equal(elastic.at("2/5").rnn.weight_hh_l0, elastic.cut("2/5").rnn.weight_hh_l0)
    one = elastic.at("1/5")
    two = elastic.at("4/5")
    with torch.no_grad():
        one.rnn.weight_hh_l0.add_(1)
        two.rnn.weight_hh_l0.add_(1)
    with pytest.raises(ValueError, match="changed in two submodels at once"):
        elastic.state_dict()


def test_a_copy_and_a_view_changed_at_once_are_an_error_too():
    elastic = fjord.elasticize(MOTIFS["gru"].build(), MOTIFS["gru"].inputs())
    saved = {key: value.clone() for key, value in elastic.state_dict().items()}
    narrow = elastic.at("2/5")
    whole = elastic.at("1")
    with torch.no_grad():
        narrow.rnn.weight_hh_l0.add_(1)
        whole.rnn.weight_hh_l0.add_(1)
    with pytest.raises(ValueError, match="changed in two submodels at once"):
        elastic.state_dict()
    elastic.load_state_dict(saved)  # the way back
    assert torch.equal(elastic.at("2/5").rnn.weight_hh_l0, elastic.cut("2/5").rnn.weight_hh_l0)


def test_submodels_the_user_holds_follow_every_step():
    elastic = fjord.elasticize(MOTIFS["gru"].build(), MOTIFS["gru"].inputs())
    held = {width: elastic.at(width) for width in ("1/5", "3/5", "1")}
    optimizer = fjord.SlicedOptimizer(elastic, SGD)
    for width in ("1", "1/5", "3/5"):
        optimizer.zero_grad()
        held[width](*MOTIFS["gru"].inputs()).square().mean().backward()
        optimizer.step()
    for width, net in held.items():
        assert torch.equal(net.rnn.weight_hh_l0, elastic.cut(width).rnn.weight_hh_l0)


def test_the_mode_of_the_model_is_that_of_its_submodels():
    elastic = fjord.elasticize(mlp(), randn(2, 6))
    elastic.at("2/5").eval()
    assert elastic.at("2/5").training
    assert not elastic.eval().at("2/5").training
    with pytest.raises(TypeError, match=r"call model\.at\(width\)"):
        elastic(randn(2, 6))
    assert "Sequential, widths 1/5" in repr(elastic)


def test_an_example_the_model_does_not_take_is_named():
    with pytest.raises(
        ValueError,
        match=r"example_inputs: Sequential does not run on them \(\(2, 7\) of torch.float32\)",
    ):
        fjord.elasticize(mlp(), randn(2, 7))


def test_an_integer_that_merely_equals_a_width_is_left_alone():
    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.max_len = 16
            self.a = nn.Linear(4, 16)
            self.b = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x[:, : self.max_len])))

    assert fjord.elasticize(Limited(), randn(2, 2, 4)).cut("2/5")(randn(2, 12, 4)).shape == (
        2,
        12,
        3,
    )


def test_attention_over_the_first_axis_is_proved_on_all_rows():
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(5, 24)
            self.k = nn.Linear(5, 24)
            self.v = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x)
            return (q @ self.k(x).T / math.sqrt(q.shape[-1])).softmax(-1) @ self.v(x)

    model = TimeFirst().eval()
    x = 3 * randn(7, 5)
    net = fjord.elasticize(model, x).cut("2/5")
    k = 10
    scores = (x @ model.q.weight[:k].T + model.q.bias[:k]) @ (
        x @ model.k.weight[:k].T + model.k.bias[:k]
    ).T
    assert torch.allclose(net(x), (scores / math.sqrt(24)).softmax(-1) @ model.v(x), atol=1e-5)


class CastNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_a_cast_written_in_forward_is_kept():
    half = nn.Sequential(nn.Linear(5, 20), CastNorm(20), nn.Linear(20, 3)).half().eval()
    x = (1000 * randn(2, 5)).half()
    elastic = fjord.elasticize(half, randn(2, 5).half())
    assert torch.allclose(elastic.cut(1)(x), half(x), atol=1e-2)
    fjord.elasticize(nn.Sequential(nn.Linear(5, 64), CastNorm(64), nn.Linear(64, 3)), randn(2, 5))


def test_bytes_turned_into_floats_in_forward_are_followed():
    class FromBytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 20)
            self.b = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x.float() / 255)))

    elastic = fjord.elasticize(FromBytes(), torch.randint(0, 255, (2, 5), dtype=torch.uint8))
    assert elastic.cut("2/5").a.out_features == 8


def test_modes_that_differ_in_a_number_alone_are_told_apart():
    class ModeDependent(Fused):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if self.training else 1.0)

    model = ModeDependent()
    x = randn(2, 4, 5)
    elastic = fjord.elasticize(model, x)
    assert elastic.blueprint.route == "graph"
    for mode in (True, False):
        assert torch.allclose(elastic.cut(1).train(mode)(x), model.train(mode)(x), atol=1e-6)


def test_a_graph_cut_refuses_other_sizes_and_takes_any_batch():
    elastic = fjord.elasticize(Fused(), randn(1, 4, 5))
    net = elastic.cut("2/5")
    assert net(randn(3, 4, 5)).shape == (3, 4, 3)
    with pytest.raises(
        ValueError, match=r"input of shape \(2, 6, 5\).*\('any', 4, 5\); elasticize the model again"
    ):
        net(randn(2, 6, 5))


@pytest.mark.parametrize("norms", ["layers", "statistics", "shared"])
def test_a_graph_cut_with_batch_norm_trains(norms):
    elastic = fjord.elasticize(Flat(nn.BatchNorm2d(10)), randn(2, 3, 8, 8), norms=norms)
    assert elastic.blueprint.route == "graph"
    batch = (randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))
    history = fjord.fit(elastic, [batch], SGD, epochs=5, space=fjord.WidthSpace.of(["2/5"]))
    assert history[-1].loss < history[0].loss
    statistics = elastic.state_dict()["n.running_mean" + ("" if norms == "shared" else "@2/5")]
    assert float(statistics.abs().sum()) > 0


def test_rows_of_a_table_are_no_units():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.Linear(4, 20)
            self.o = nn.Linear(20, 3)
            self.register_buffer("table", randn(1, 50, 20))

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.e(x) + self.table[:, : x.shape[1]])

    elastic = fjord.elasticize(Positions(), randn(2, 5, 4))
    assert {f.name for f in elastic.plan.families} == {"e.weight[0]"}
    assert elastic.cut("1/5")(randn(2, 20, 4)).shape == (2, 20, 3)


def test_what_a_module_cached_does_not_matter():
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 20)
            self.b = nn.Linear(20, 3)
            self.last = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.a(x)
            return self.b(F.relu(self.last))

    model = Caching()
    model(randn(2, 6))
    assert fjord.elasticize(model, randn(2, 6)).cut("2/5").a.out_features == 8


def test_weight_norm_is_followed():
    wrap = nn.utils.parametrizations.weight_norm
    elastic = fjord.elasticize(
        nn.Sequential(wrap(nn.Linear(5, 20)), nn.ReLU(), nn.Linear(20, 3)), randn(2, 5)
    )
    assert elastic.cut("2/5")(randn(3, 5)).shape == (3, 3)
    assert {f.num_units for f in elastic.plan.families} == {20}


def test_a_projection_too_small_for_its_lstm_is_refused_in_words():
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.LSTM(7, 10, proj_size=6, batch_first=True)
            self.o = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.l(x)[0])

    with pytest.raises(fjord.ElasticityError, match="proj_size below hidden_size"):
        fjord.elasticize(Projected(), randn(2, 4, 7))
    elastic = fjord.elasticize(Projected(), randn(2, 4, 7), widths=["1/2", "1"])
    with pytest.raises(fjord.ElasticityError, match="proj_size below hidden_size"):
        elastic.cut("1/5")


def test_pixel_shuffle_moves_channels_into_the_image_in_blocks():
    net = nn.Sequential(
        nn.Conv2d(3, 20, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(5, 3, 3, padding=1)
    )
    elastic = fjord.elasticize(net, randn(2, 3, 8, 8))
    assert [f.num_units for f in elastic.plan.families] == [5]


def test_freezing_by_the_second_name_of_a_tied_tensor():
    motif = MOTIFS["tied weights"]
    with pytest.raises(fjord.ElasticityError, match=r"frozen by the user \(head\)"):
        fjord.elasticize(motif.build().double(), motif.inputs(), freeze="head")


def test_a_graph_cut_is_loaded_with_the_plan_of_its_file(tmp_path):
    elastic = fjord.elasticize(Fused(), randn(2, 4, 5), freeze="e", round_to=2).eval()
    elastic.save(tmp_path / "model.safetensors")
    again = fjord.load_model(tmp_path / "model.safetensors", Fused, randn(2, 4, 5)).eval()
    assert again.plan == elastic.plan
    assert torch.allclose(
        again.cut("2/5")(randn(3, 4, 5)), elastic.cut("2/5")(randn(3, 4, 5)), atol=1e-6
    )


def test_a_model_in_evaluation_is_cut_in_evaluation():
    assert not fjord.elasticize(mlp().eval(), randn(2, 6)).cut("2/5").training
    assert fjord.elasticize(mlp().train(), randn(2, 6)).cut("2/5").training


def test_a_constant_of_the_graph_survives():
    class Constant(Fused):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.tensor([1.0, 2.0, 3.0])

    model = Constant().eval()
    x = randn(2, 4, 5)
    elastic = fjord.elasticize(model, x)
    assert elastic.blueprint.route == "graph"
    assert torch.allclose(elastic.cut(1)(x), model(x), atol=1e-6)
    assert all(p.is_meta for p in elastic.blueprint.trace.graphs[False].parameters())


def test_an_example_too_small_to_train_on_does_not_matter():
    net = nn.Sequential(
        nn.Conv2d(3, 10, 8), nn.BatchNorm2d(10), nn.Flatten(), nn.Dropout(0.5), nn.Linear(10, 3)
    )
    assert fjord.elasticize(net, randn(1, 3, 8, 8)).cut("2/5")[0].out_channels == 4


@pytest.mark.parametrize("hidden", [3, 4, 5])
def test_an_lstm_cut_to_one_unit_a_gate_trains(hidden):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, hidden, batch_first=True)
            self.head = nn.Linear(hidden, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    model = fjord.elasticize(Net(), torch.randn(2, 3, 4))
    view = model.shared_submodel(parse_width("1/5"))
    assert not any(p.tensor.data_ptr() == p.source.data_ptr() for p in view.copies)
    stepper = fjord.SlicedOptimizer(model, partial(torch.optim.SGD, lr=0.1))
    widths = parse_width("1/5"), parse_width("1")
    batch = torch.randn(6, 3, 4), torch.randint(0, 2, (6, 3))
    losses = [
        float(fjord.train_step(model, stepper, fjord.self_distillation(), batch, widths).detach())
        for _ in range(8)
    ]
    assert losses[-1] < losses[0]
