"""A trained model in use: widths outside P, latency, and a width that follows the load."""

import copy
import itertools
import math
import random
import re
import threading
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import fjord
from fjord.cli import app
from fjord.core.width import parse_width
from fjord.deploy.latency import time_networks
from fjord.deploy.policy import LONGEST_PATIENCE, WidthPolicy
from fjord.training.evaluate import score_network

WIDTHS = fjord.uniform_widths(5).widths


class Net(nn.Module):
    """A convolution with BatchNorm; with `fixed`, a size written in `forward`, so that it is cut by its graph."""

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


EXAMPLE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


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


def stripes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    waves = torch.sin(torch.arange(8.0) * (labels[:, None] + 1) / 2)
    images = waves[:, None, None, :] + 0.9 * torch.randn(count, 1, 8, 8, generator=generator)
    return images, labels


@pytest.fixture(scope="module")
def trained():
    """A network with BatchNorm that has learned stripes in noise at the widths of uniform-5."""
    torch.manual_seed(0)
    model = fjord.elasticize(Deeper(), EXAMPLE)
    images, labels = stripes(1024, 0)
    data = list(zip(images.split(32), labels.split(32), strict=True))
    fjord.fit(model, data, partial(torch.optim.SGD, lr=0.05, momentum=0.9), epochs=6, seed=0)
    return model.eval()


class Deeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10)
        self.two, self.norm2 = nn.Conv2d(10, 20, 3, padding=1), nn.BatchNorm2d(20)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        y = torch.relu(self.norm1(self.one(x)))
        return self.head(torch.relu(self.norm2(self.two(y))).mean((2, 3)))


def test_a_width_between_two_trained_ones_scores_between_them_once_recalibrated(trained):
    images, labels = stripes(2000, 1)
    test = [(images, labels)]
    raw = score_network(trained.cut("1/2"), test)
    fjord.recalibrate(trained, "1/2", stripes(256, 2)[0].split(64))
    scores = fjord.evaluate(trained, test, ["2/5", "1/2", "3/5"])
    low, middle, high = (scores[parse_width(w)].loss for w in ("2/5", "1/2", "3/5"))
    assert high <= middle <= low, (low, middle, high)
    assert middle < raw.loss


def test_switching_width_loads_and_copies_nothing(trained):
    full = trained.tensors["two.weight"]
    nets = {width: trained.at(width) for width in WIDTHS}
    for width, net in nets.items():
        assert trained.at(width) is net
        assert net.get_parameter("two.weight").data_ptr() == full.data_ptr()


class Recurrent(nn.Module):
    """An LSTM, whose gates cannot be views of the full-size weights."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.norm, self.head = (
            nn.LSTM(4, 10, batch_first=True),
            nn.BatchNorm1d(10),
            nn.Linear(10, 4),
        )

    def forward(self, x):
        return self.head(self.norm(self.cells(x)[0][:, -1]))


def test_a_width_first_used_in_inference_mode_can_be_used_and_trained_afterwards():
    x = torch.randn(6, 3, 4)
    model = fjord.elasticize(Recurrent(), x).eval()
    with torch.inference_mode():
        answers = {width: model.at(width)(x) for width in ("2/5", "1")}
        fjord.recalibrate(model, "1/2", [x])
        model.at("1/2")(x)
    for width, answer in answers.items():
        torch.testing.assert_close(
            model.at(width)(x), answer
        )  # with gradients, the LSTM has another kernel
    model.train()
    for width in ("2/5", "1/2"):
        model.at(width)(x).sum().backward()
        assert model.at(width).get_parameter("cells.weight_hh_l0").grad is not None


def test_submodels_answer_alike_in_many_threads(trained):
    images = stripes(64, 3)[0]
    with torch.inference_mode():
        expected = {width: trained.at(width)(images) for width in WIDTHS}
    fresh, wrong = (
        copy.deepcopy(trained),
        [],
    )  # whose submodels are built by whichever thread comes first

    def serve(start):
        with torch.inference_mode():
            for i in range(20):
                width = WIDTHS[(start + i) % 5]
                if not torch.equal(fresh.at(width)(images), expected[width]):
                    wrong.append(width)

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


IDLE = dict(zip(WIDTHS, (0.002, 0.005, 0.010, 0.015, 0.017), strict=True))


def settle(policy, state, load, requests):
    """Serve requests whose time is the load times that of their width; return the state and the widths used."""
    used = []
    for _ in range(requests):
        used.append(state.width)
        state = policy.after(state, policy.idle[state.width] * load)
    return state, used


@settings(deadline=None)
@given(
    st.floats(0.3, 20),
    st.floats(0.3, 20),
    st.floats(0.002, 0.1),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_a_steady_load_gets_the_largest_width_that_fits_and_keeps_it(
    before, load, target, quantile
):
    policy = WidthPolicy(IDLE, target, quantile)
    state, _ = settle(policy, policy.start(), before, 3 * policy.window)
    state, used = settle(policy, state, load, 3 * policy.window)
    fitting = [w for w in WIDTHS if IDLE[w] * load <= target] or [WIDTHS[0]]
    roomy = [w for w in WIDTHS if IDLE[w] * load * (1 + policy.margin) <= target] or [WIDTHS[0]]
    assert max(roomy) <= state.width <= max(fitting)
    assert sum(a != b for a, b in itertools.pairwise(used)) <= 2, (
        "one change down or up, none back and forth"
    )
    assert set(settle(policy, state, load, 200)[1]) == {state.width}


@settings(deadline=None)
@given(st.floats(1.0, 8.0))
def test_a_load_is_answered_by_its_second_miss_and_forgotten_after_a_window(load):
    policy = WidthPolicy(IDLE, 1.3 * IDLE[WIDTHS[-1]])
    calm, _ = settle(policy, policy.start(), 1.0, 100)
    _, used = settle(policy, calm, load, 10)
    misses = sum(IDLE[w] * load > policy.target for w in used)
    assert misses <= 2 or IDLE[WIDTHS[0]] * load > policy.target
    state, _ = settle(policy, calm, load, 100)
    assert settle(policy, state, 1.0, policy.window)[0].width == WIDTHS[-1]


def test_a_step_up_that_fails_makes_the_next_one_wait_longer():
    policy = WidthPolicy({Fraction(1, 2): 0.001, Fraction(1): 0.002}, 0.003)
    state, changes, last, missed = policy.start(), [], None, 0
    for i in range(6000):  # full width is far slower than the load at half width lets expect
        seconds = 0.001 if state.width < 1 else 0.009
        missed += seconds > policy.target
        state = policy.after(state, seconds)
        if state.width != last:
            changes.append(i)
        last = state.width
    waits = [b - a for a, b in itertools.pairwise(changes) if b - a >= policy.window]
    assert waits[0] < waits[1] < waits[2], "each wait is longer than the one before"
    assert max(waits) == LONGEST_PATIENCE * policy.window
    assert missed / 6000 < 0.02


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(["slower", "stalls"]))
def test_the_target_holds_in_95_of_100_requests_while_load_comes_and_goes(seed, kind):
    rng, policy = random.Random(seed), WidthPolicy(IDLE, 1.3 * IDLE[WIDTHS[-1]])
    state, within, total, widths = policy.start(), 0, 0, 0.0
    for _ in range(8):
        load = rng.choice([1.0, 1.0, 2.0, 3.5])
        for _ in range(rng.randint(150, 400)):
            idle = IDLE[state.width]
            if kind == "slower":
                seconds = idle * load * rng.uniform(0.98, 1.1)
            else:  # time comes in slices of 4 ms, and others may have the next one first
                seconds = idle + 0.004 * sum(
                    rng.random() < 1 - 1 / load for _ in range(1 + int(idle / 0.004))
                )
            within += seconds <= policy.target
            total, widths = total + 1, widths + float(state.width)
            state = policy.after(state, seconds)
    assert within / total >= 0.95
    assert widths / total > 0.3


def test_impossible_targets_and_strange_settings_are_refused():
    with pytest.raises(
        ValueError, match=r"target=0.001 s: the fastest width takes 0.002 s .* at least 0.0022"
    ):
        WidthPolicy(IDLE, 0.001)
    for setting in (
        {"quantile": 1.0},
        {"quantile": 0},
        {"margin": -1},
        {"target": -1},
        {"target": float("inf")},
    ):
        with pytest.raises(ValueError, match=next(iter(setting))):
            WidthPolicy(**{"idle": IDLE, "target": 1.0, **setting})


@dataclass
class Stage:
    """A clock that stands still but for what requests add to it."""

    now: float = 0.0
    load: float = 1.0
    used: list = field(default_factory=list)

    def clock(self):
        return self.now

    def net(self, width, inner):
        def run(x):
            self.now += IDLE[width] * self.load
            self.used.append(width)
            return inner(x)

        return run


def test_a_controller_answers_with_the_submodel_of_its_width(trained, monkeypatch):
    stage, image = Stage(), stripes(1, 4)[0]
    inner = {width: trained.at(width) for width in WIDTHS}
    monkeypatch.setattr(trained, "at", lambda width: stage.net(width, inner[width]))
    controller = fjord.WidthController(trained, image, target=0.022, clock=stage.clock)
    assert controller.policy.idle == pytest.approx(IDLE)
    assert controller.served.requests == 0
    assert math.isnan(controller.served.mean_width)
    for load, width in ((1.0, "1"), (2.0, "3/5"), (5.0, "1/5"), (1.0, "1")):
        stage.load = load
        for _ in range(60):
            answer = controller(image)
        assert controller.width == parse_width(width)
        assert torch.equal(answer, inner[stage.used[-1]](image))
    served = controller.served
    assert served.requests == 240
    assert served.within == pytest.approx(1 - 4 / 240)
    assert 0 < served.mean_width < 1


def test_a_controller_on_a_real_clock_serves_from_many_threads(trained):
    image = stripes(1, 4)[0]
    controller = fjord.WidthController(trained, image, target=1.0)
    threads = [
        threading.Thread(target=lambda: [controller(image) for _ in range(30)]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert controller.served.requests == 90
    assert set(controller.served.widths) <= set(WIDTHS)
    with pytest.raises(ValueError, match=r"target=1e-09 s: the fastest width takes"):
        fjord.WidthController(trained, image, target=1e-9)


def test_networks_are_timed_in_turn_and_slow_ones_not_for_long():
    stage = Stage()
    nets = {width: stage.net(width, lambda x: x) for width in WIDTHS[:2]}
    times = time_networks(nets, (torch.zeros(1),), rounds=5, clock=stage.clock)
    assert stage.used == [*WIDTHS[:2]] * 6
    assert [len(t) for t in times.values()] == [5, 5]
    assert [min(t) for t in times.values()] == pytest.approx([0.002, 0.005])
    assert (
        len(time_networks(nets, (torch.zeros(1),), seconds=0.0, clock=stage.clock)[WIDTHS[0]]) == 3
    )


def test_latency_stands_beside_multiply_accumulates():
    done = CliRunner().invoke(app, ["latency", "cnn", "--widths", "1/5,1"])
    assert done.exit_code == 0, done.output
    assert "46,976" in done.output
    assert "490,880" in done.output
    assert "0.10" in done.output
    assert "1.00" in done.output


def test_the_python_of_the_page_on_inference_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "inference.md").read_text()
    names: dict[str, object] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["found"].score >= names["found"].uniform_score
    assert names["controller"].served.requests == 100
