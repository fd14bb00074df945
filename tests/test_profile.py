"""What training costs at each width: units, budgets, the measurement itself, and the width that is picked."""

import gc
import json
import os
import re
import shlex
import signal
import sys
import time
import weakref
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fjord
from fjord.cli import main
from fjord.devices.budget import Budget
from fjord.devices.profile import Profile, read_profile
from fjord.devices.units import parse_bytes, parse_rate, parse_seconds, show_bytes, show_rate, show_seconds
from fjord.footprint import Footprint
from fjord.local import Task, Trainer, size
from fjord.objective import plain, self_distillation
from fjord.profiling import measure
from fjord.profiling.measure import Measured, gathered, received
from fjord.profiling.memory import OutOfMemory, Peak, in_child
from fjord.profiling.predict import Shape, predict_memory, predict_setup, predict_steps, shape_of
from fjord.profiling.profile import profile_federation
from fjord.profiling.workload import of_model
from fjord.width import parse_width, uniform
from profiles import made

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Time steps for a moment only."""
    monkeypatch.setattr(measure, "SECONDS", 0.02)


# ------------------------------------------------------------------------------------------- units and budgets


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_seconds, "60s", 60),
        (parse_seconds, "2min", 120),
        (parse_seconds, "1.5 H", 5400),
        (parse_seconds, "250ms", 0.25),
        (parse_bytes, "512MB", 512 * 10**6),
        (parse_bytes, "512mb", 512 * 10**6),
        (parse_bytes, "1GiB", 2**30),
        (parse_bytes, "1e3 kB", 10**6),
        (parse_rate, "5Mbit", 625_000),
        (parse_rate, "5mbit/s", 625_000),
        (parse_rate, "5 Mbps", 625_000),
        (parse_rate, "1MB/s", 10**6),
        (parse_rate, "1MiB/s", 2**20),
    ],
)
def test_quantities_are_read_as_people_write_them(read, text, value):
    assert read("--x", text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (parse_seconds, "60", "--x 60: has no unit; allowed: us, ms, s, min or h"),
        (parse_seconds, "60 parsec", "--x 60 parsec: unit 'parsec' is unknown; allowed: us, ms, s, min or h"),
        (parse_seconds, "-3s", "--x -3s: must be above 0"),
        (parse_bytes, "0MB", "--x 0MB: must be above 0"),
        (parse_bytes, "much", "--x much: is not a number with a unit; allowed units: B, kB, MB"),
        (parse_bytes, "5Mbit", "unit 'Mbit' is unknown; allowed: B, kB"),
        (parse_bytes, "infMB", "is not a number"),
        (parse_bytes, "1e999MB", "must be above 0"),
        (parse_rate, "5Mb/s", "unit 'Mb/s' is unknown; allowed: kbit, Mbit"),
        (parse_rate, "5mb/s", "unit 'mb/s' is unknown"),
        (parse_rate, "", "is not a number with a unit"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_is_allowed(read, text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        read("--x", text)


@given(st.floats(1e-3, 1e6))
def test_what_is_shown_is_enough_and_at_most_a_tenth_more(value):
    for show, read, least in (
        (show_seconds, parse_seconds, 0),
        (show_bytes, parse_bytes, 1),
        (show_rate, parse_rate, 1),
    ):
        wanted = max(value, least)
        assert wanted * (1 - 1e-9) - 1 * (read is parse_bytes) < read("x", show(wanted)) <= 1.1 * wanted * (1 + 1e-9)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"deadline": "60s"}, "--deadline needs --examples"),
        ({"examples": "many"}, "--examples many: must be a whole number of at least 1"),
        ({"examples": 0}, "--examples 0: must be"),
        ({"speed": "3s"}, "--speed: no such limit; known: deadline, memory, bandwidth, examples"),
    ],
)
def test_a_bad_budget_is_one_error(limits, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Budget.parse(limits)


# ------------------------------------------------------------------------------------------ widths and budgets


def test_a_round_is_download_training_and_upload():
    profile = made(step=2.0, setup=3.0, size=50_000, batch_size=16, epochs=2)
    budget = Budget.parse({"examples": 500, "bandwidth": "1kB/s", "deadline": "1h"})
    verdict = profile.verdicts(budget)[-1]
    assert verdict.transfer_seconds == 100.0
    assert verdict.train_seconds == 3.0 + 2 * 32 * 2.0
    assert verdict.seconds == 231.0
    cut = replace(profile, max_steps=50)
    assert cut.verdicts(budget)[-1].seconds == 100.0 + 3.0 + 50 * 2.0
    assert Profile.of_json(cut.as_json()) == cut
    older = {key: value for key, value in profile.as_json().items() if key != "max_steps"}
    assert Profile.of_json(older) == profile


def test_the_widest_that_fits_all_limits_is_picked():
    profile = made(kinds=(False, True), step=1.0, memory=10_000_000)
    assert profile.widest(Budget(deadline=6.0, examples=100), False) == Fraction(3, 5)
    assert profile.widest(Budget(memory=4_000_000), True) == Fraction(2, 5)
    assert profile.widest(Budget(deadline=6.0, examples=100, memory=2_000_000), False) == Fraction(1, 5)
    assert profile.widest(Budget(), False) == 1
    with pytest.raises(ValueError, match=r"kd=None: the profile of net holds kd=False, True"):
        profile.widest(Budget())


@given(
    step=st.floats(1e-4, 10),
    memory=st.integers(10**4, 10**9),
    size=st.integers(10, 10**8),
    examples=st.integers(1, 500),
)
def test_where_nothing_fits_the_error_names_the_smallest_budget_that_would_do(step, memory, size, examples):
    profile = made(step=step, memory=memory, size=size)
    tight = {"deadline": "0.001ms", "memory": "1kB", "bandwidth": "1MB/s", "examples": examples}
    with pytest.raises(ValueError, match="nothing fits") as raised:
        profile.widest(Budget.parse(tight))
    said = dict(re.findall(r"give at least --(\w+) ([\w.]+)", str(raised.value)))
    assert said.keys() == {"deadline", "memory"}
    assert profile.widest(Budget.parse({**tight, **said})) >= Fraction(1, 5)


def test_where_more_bandwidth_would_do_the_error_says_how_much():
    profile = made(step=1.0, size=100_000)
    tight = {"deadline": "4s", "bandwidth": "8kbit", "examples": 100}
    with pytest.raises(ValueError, match="training 2s, transfer 40s") as raised:
        profile.widest(Budget.parse(tight))
    (enough,) = re.findall(r"--bandwidth (\w+)", str(raised.value))
    assert enough == "160kbit"
    assert profile.widest(Budget.parse({**tight, "bandwidth": enough})) == Fraction(1, 5)
    with pytest.raises(ValueError, match="no bandwidth would be enough"):
        profile.widest(Budget.parse({**tight, "deadline": "1s"}))


def test_a_profile_survives_json(tmp_path):
    profile = made(kinds=(True, False, None), step=1 / 3)
    text = json.dumps({**profile.as_json(), **profile.answer(Budget(memory=500_000))})
    assert Profile.of_json(json.loads(text)) == profile
    assert json.loads(text)["answers"][0] == {"kd": True, "width": "2/5", "round_seconds": None}
    (tmp_path / "a.json").write_text(text.replace('"fjord_profile": 1', '"fjord_profile": 2'))
    with pytest.raises(ValueError, match=r"a\.json: fjord_profile=2: this version reads 1"):
        read_profile(tmp_path / "a.json")


# ------------------------------------------------------------------------------------------------- measurement


@LINUX
@pytest.mark.parametrize("before", [0, 60])
def test_the_peak_is_what_was_taken_whatever_was_freed_before(before):
    def work():
        for _ in range(before):  # in pieces that the allocator keeps for later
            [torch.ones(2**14) for _ in range(16)]
        peak = Peak()
        held = [torch.ones(5 * 2**20), *(torch.ones(2**14) for _ in range(160))]  # 20 MiB, and 10 in small pieces
        torch.ones(5 * 2**18)  # 5 MiB that come and go
        return {"growth": peak.growth(), "held": len(held)}

    found = in_child(work)["growth"]
    assert 34.5 * 2**20 <= found <= 38 * 2**20


def fails(error):
    def work():
        raise error

    return work


def test_a_child_that_fails_is_told_apart_from_one_that_ran_out_of_memory():
    with pytest.raises(OutOfMemory):
        in_child(fails(MemoryError()))
    with pytest.raises(OutOfMemory):
        in_child(lambda: {"x": torch.empty(2**50)})
    with pytest.raises(OutOfMemory, match="killed"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(ValueError, match="training failed: KeyError: 'x'"):
        in_child(fails(KeyError("x")))
    assert in_child(lambda: {"x": 1}) == {"x": 1}


def mlp(hidden=40, depth=2):
    layers = [layer for _ in range(depth - 1) for layer in (nn.Linear(hidden, hidden), nn.ReLU())]
    return nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), *layers, nn.Linear(hidden, 3))


def test_a_profile_tells_what_a_client_of_each_ceiling_is_sent_and_computes():
    space = uniform(2)
    profile = fjord.profile(mlp(), torch.randn(4, 12), widths=space, batch_size=8, name="mlp", device="here")
    assert (profile.model, profile.device, profile.method, profile.kinds) == ("mlp", "here", "fjord-kd", (True, False))
    federation = of_model(mlp(), torch.randn(4, 12), space, 8, 1)
    weights = {half: 12 * h + h + h * h + h + 3 * h + 3 for half, h in ((False, 40), (True, 20))}
    macs = {half: 12 * h + h * h + 3 * h for half, h in ((False, 40), (True, 20))}
    for kd in (True, False):
        small, full = (profile.cost(width, kd) for width in space.widths)
        assert [c.bytes_down for c in (small, full)] == [4 * weights[True], 4 * weights[False]]
        assert small.bytes_up == small.bytes_down == size(federation.task_at(Fraction(1, 2)).tensors)
        assert small.macs_per_step == 3 * 8 * macs[True]
        both = 2 * macs[False] + macs[True] if kd else macs[False] + macs[True]  # of two steps, one at each width
        assert full.macs_per_step == 3 * 8 * both // 2
        assert all(c.time == c.memory == "measured" for c in (small, full)) or sys.platform != "linux"
        assert min(c.step_seconds for c in (small, full)) > 0


@LINUX
def test_measured_memory_holds_at_least_slice_gradients_and_activations():
    wide = nn.Sequential(nn.Linear(99, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 3))
    inputs = torch.randn(2, 99)
    profile = fjord.profile(wide, inputs, widths=uniform(2), batch_size=512, kd=True)
    federation = of_model(wide, inputs, uniform(2), 512, 1)
    for width in profile.widths:
        rows = gathered(federation.data, 512, 2 * 512)
        shape = shape_of(federation, width, self_distillation(), rows, {})
        assert 1 <= profile.cost(width).memory_bytes / shape.memory < 4  # what libraries and the allocator add
    assert profile.cost(Fraction(1)).memory_bytes > 1.8 * profile.cost(Fraction(1, 2)).memory_bytes


def measured_memory(federation, ceiling, objective) -> int:
    return measure.Bench(federation, federation.data.examples(0), objective).measure(Fraction(ceiling)).memory


def with_examples(net, examples: int):
    """A federation of one client with so many examples of 40 kB."""
    federation = of_model(net, torch.randn(2, 10_000), uniform(2), 10, 1)
    federation.data = measure.only(gathered(federation.data, 10, examples), federation.data)
    return federation


@LINUX
def test_measured_memory_counts_the_examples_once_however_many_steps_are_timed(monkeypatch):
    net = nn.Sequential(nn.Linear(10_000, 4), nn.ReLU(), nn.Linear(4, 2))
    few, many = with_examples(net, 20), with_examples(net, 600)  # which are 23.2 MB more
    found = []
    for seconds in (1e-9, 0.2):  # from a part of one epoch to many
        monkeypatch.setattr(measure, "SECONDS", seconds)
        found.append(measured_memory(many, 1, plain()) - measured_memory(few, 1, plain()))
    assert found == pytest.approx([23_200_000] * 2, rel=0.1)


def test_a_trainer_keeps_no_batch_of_a_client_and_after_a_shortage_no_network():
    federation = of_model(mlp(), torch.randn(4, 12), uniform(2), 8, 1)
    seen = []
    prepare = lambda x, generator: seen.append(weakref.ref(x)) or x  # noqa: E731
    federation.data = fjord.Generated(1, federation.data.examples, federation.data.test, prepare=prepare)
    trainer = federation.trainer()
    trainer(federation.task_at(Fraction(1)))
    (bench,) = trainer._benches.values()
    seen += [weakref.ref(bench.model.view(width).net) for width in federation.space.widths]
    del bench
    trainer._benches.clear()  # as it does before it tries a smaller width
    gc.collect()
    assert len(seen) > 2
    assert all(kept() is None for kept in seen)


def test_what_must_be_held_at_once_is_not_the_sum_of_what_is_held_in_turn():
    # Activations go as gradients come: 400 floats an example and batch early, and most weights late.
    net = nn.Sequential(nn.Linear(1, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 2))
    federation = of_model(net, torch.randn(4, 1), fjord.WidthSpace.of(["1"]), 100, 1)
    one = shape_of(federation, Fraction(1), plain(), federation.data.examples(0), {})
    weights = 4 * (400 + 400 + 400 * 400 + 400 + 2 * 400 + 2)
    examples = 100 * (4 + 8)
    assert one.least == 3 * weights + examples  # as it came, in training, and as it is sent back
    assert one.memory >= one.least


def test_an_experiment_is_measured_with_its_own_method_batches_and_data():
    def data(seed):
        x = torch.randn(60, 12)
        return fjord.partition((x, torch.randint(3, (60,))), torch.arange(60) % 3, (x, torch.randint(3, (60,))))

    numbers = {"widths": uniform(2), "tiers": "uniform-2", "batch_size": 5}
    recipe = fjord.Experiment(name="mine", model=mlp, data=data, method="heterofl", **numbers)
    assert fjord.profile(replace(recipe, max_local_steps=3), measure=["1/2"]).max_steps == 3
    profile = fjord.profile(recipe)
    assert (profile.model, profile.method, profile.batch_size, profile.kinds) == ("mine", "heterofl", 5, (None,))
    assert profile.costs[1].macs_per_step == 3 * 5 * (12 * 40 + 40 * 40 + 3 * 40)  # only at its ceiling
    assert fjord.profile(recipe, widths=fjord.WidthSpace.of(["3/5", "1"]), measure=["3/5"]).widths[0] == Fraction(3, 5)
    scaffold = fjord.profile(replace(recipe, scaffold=True, method="fjord"), kd=False, measure=["1/2"])
    cost = scaffold.cost(Fraction(1))
    assert cost.bytes_down == 2 * cost.bytes_up
    assert (cost.time, cost.memory) == ("predicted", "predicted")


def test_a_model_that_cannot_be_trained_as_clients_train_is_said():
    with pytest.raises(ValueError, match="inputs: clients train on one tensor"):
        fjord.profile(mlp())
    with pytest.raises(ValueError, match="scores"):
        fjord.profile(nn.Sequential(nn.Linear(12, 40), nn.Linear(40, 3), nn.Flatten(0)), torch.randn(2, 12))
    with pytest.raises(ValueError, match=r"measure: width 1/3 is not one of 1/5, 2/5"):
        fjord.profile(mlp(), torch.randn(2, 12), measure=["1/3"])
    for wrong in ({"batch_size": -1}, {"batch_size": 0}, {"epochs": 0}, {"examples": 0}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value} must be a whole number of at least 1"):
            fjord.profile(mlp(), torch.randn(2, 12), **wrong)


def test_a_width_that_runs_out_of_memory_does_not_fit_and_no_wider_one_is_tried(monkeypatch):
    tried, real = [], measure.Bench._measure

    def measured(bench, ceiling):
        if ceiling > Fraction(2, 5):
            raise MemoryError
        return real(bench, ceiling)

    monkeypatch.setattr(measure.Bench, "_measure", measured)
    federation = of_model(mlp(), torch.randn(2, 12), None, 8, 1)
    profile = profile_federation(federation, kd=False, say=tried.append)
    assert [c.time for c in profile.costs] == ["measured", "measured", "failed", "failed", "failed"]
    assert len(tried) == 3
    assert profile.widest(Budget(memory=10**12)) == Fraction(2, 5)


# -------------------------------------------------------------------------------------------------- prediction


def shape(ceiling: str, kd: bool, macs=lambda w: int(1000 * w * w)) -> Shape:
    """A client's shapes with costs that can be reckoned."""
    space = uniform(5).upto(ceiling)
    costs = {w: Footprint(w, macs(w), 0, 0, 0, int(10_000 * w)) for w in space.widths}
    passes = {w: [space.largest, *([w] if w != space.largest else [])] if kd else [w] for w in space.widths}
    return Shape(Task(0, 0, 0.1, {}, space, {}), passes, costs, 4, False)


@pytest.mark.parametrize("kd", [False, True])
def test_steps_of_ceilings_not_run_are_the_sum_of_the_passes_that_were(kd):
    seconds = {w: 0.01 + float(w) ** 2 for w in uniform(5).widths}
    full = shape("1", kd)
    steps = {w: sum(seconds[run] for run in runs) for w, runs in full.passes.items()}
    for ceiling in ("1/5", "3/5", "4/5"):
        other = shape(ceiling, kd)
        found = predict_steps(other, {Fraction(1): (full, Measured(steps, 0.0, 0, 0))})
        assert found == pytest.approx({w: sum(seconds[run] for run in runs) for w, runs in other.passes.items()})


def test_steps_of_submodels_never_run_follow_multiply_accumulates():
    known = {}
    for ceiling in ("1/5", "2/5"):
        one = shape(ceiling, False)
        known[parse_width(ceiling)] = one, Measured({w: 1 + one.costs[w].macs for w in one.costs}, 1.0, 0, 0)
    full = shape("1", False)
    assert predict_steps(full, known) == pytest.approx({w: 1 + cost.macs for w, cost in full.costs.items()})


@given(st.floats(0.1, 10), st.integers(0, 10**6))
def test_memory_of_a_ceiling_not_run_lies_on_the_line_of_those_that_were(slope, start):
    shapes = {w: shape(w, True) for w in ("1/5", "3/5", "1")}
    lines = {w: round(start + slope * one.memory) for w, one in shapes.items()}
    known = {parse_width(w): (shapes[w], lines[w]) for w in ("1/5", "1")}
    assert predict_memory(shapes["3/5"], known) == pytest.approx(lines["3/5"], abs=2)
    assert predict_memory(shapes["3/5"], {}) == shapes["3/5"].memory
    one = {parse_width("1"): (shapes["1"], 3 * shapes["1"].memory)}
    assert predict_memory(shapes["3/5"], one) == 3 * shapes["3/5"].memory


def test_setup_grows_with_the_number_of_submodels():
    known = {parse_width(w): (shape(w, False), Measured({}, t, 0, 0)) for w, t in (("1/5", 1.0), ("1", 9.0))}
    assert predict_setup(shape("3/5", False), known) == 5.0


def test_the_loss_is_asked_which_submodels_it_runs():
    federation = of_model(mlp(), torch.randn(4, 12), uniform(2), 8, 1)
    half, whole = uniform(2).widths
    batch = federation.data.examples(0)
    assert shape_of(federation, whole, plain(), batch, {}).passes == {half: [half], whole: [whole]}
    assert shape_of(federation, whole, self_distillation(), batch, {}).passes == {half: [whole, half], whole: [whole]}


# --------------------------------------------------------------------------------------------- the real round


def real_round(federation, ceiling) -> float:
    """Return what a real client's round takes: the best of three, as other work only makes it longer."""
    best = float("inf")
    for _ in range(3):
        trainer = Trainer(federation.model, federation.data, federation.training, 0)
        started = time.perf_counter()
        trainer(received(federation.task_at(ceiling)))
        best = min(best, time.perf_counter() - started)
    return best


def test_the_width_picked_meets_the_deadline_and_the_next_does_not():
    inputs = torch.randn(128, 64)
    net = nn.Sequential(nn.Linear(64, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(), nn.Linear(1600, 5))
    federation = of_model(net, inputs, fjord.WidthSpace.of(["1/16", "1"]), 64, 1)
    examples = 30 * 64
    x, y = (t[torch.arange(examples) % 128] for t in federation.data.examples(0))
    federation.data = fjord.Generated(1, lambda _: (x, y), federation.data.test)
    for attempt in range(3):  # other work may disturb one
        profile = profile_federation(federation, kd=False, examples=examples)
        budget = Budget(examples=examples)
        low, high = (verdict.seconds for verdict in profile.verdicts(budget))
        deadline = (low + high) / 2
        picked = profile.widest(replace(budget, deadline=deadline))
        assert picked == Fraction(1, 16)
        real = [real_round(federation, width) for width in (picked, Fraction(1))]
        if high > 3 * low and real[0] < deadline < real[1]:
            return
        assert attempt < 2, (low, high, real)


# ------------------------------------------------------------------------------------------------ command line


MINE = """
import torch
from torch import nn
import fjord

def net():
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), torch.randn(4, 12)

def two():
    return nn.Bilinear(4, 4, 2), (torch.randn(2, 4), torch.randn(2, 4))

def data(seed):
    x, y = torch.randn(40, 12), torch.randint(3, (40,))
    return fjord.partition((x, y), torch.arange(40) % 4, (x, y))

def recipe():
    return fjord.Experiment(name="mine", model=lambda: net()[0], data=data, method="fjord", widths=["1/2", "1"],
        tiers="uniform-2")
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with a file of one's own; return its exit code and what it said."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fjord", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize("name", ["mine:net", "mine.py:net"])
def test_a_model_of_ones_own_is_profiled_with_a_table_and_json(command, tmp_path, name):
    limits = ["--deadline", "1h", "--examples", "100", "--memory", "1GB", "--bandwidth", "5Mbit"]
    code, out, err = command("profile", name, "--widths", "1/2,1", *limits, "--json", "a.json")
    assert (code, err) == (0, "")
    assert "with distillation: width 1" in out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["budget"] == {"deadline": 3600.0, "memory": 10**9, "bandwidth": 625_000.0, "examples": 100}
    assert [(a["kd"], a["width"]) for a in found["answers"]] == [(True, "1"), (False, "1")]
    assert read_profile("a.json").model == name


def test_a_recipe_brings_its_own_settings_and_json_can_be_printed(command):
    code, out, _ = command("profile", "mine.py", "--set", "batch_size=7", "--measure", "1", "--no-kd", "--json", "-")
    found = json.loads(out)
    assert code == 0
    assert (found["batch_size"], found["method"], len(found["costs"])) == (7, "fjord", 2)
    assert [c["time"] for c in found["costs"]] == ["predicted", "measured"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["mine:net", "--memory", "1kB", "--widths", "1/5,1", "--kd"],
            "nothing fits: --memory 1kB: the smallest width 1/5 needs",
        ),
        (
            ["mine.py", "--deadline", "1ms", "--examples", "9000"],
            "nothing fits: --deadline 1ms: the smallest width 1/2",
        ),
        (["mine:net", "--memory", "-1GB"], "--memory -1GB: must be above 0"),
        (["mine:net", "--deadline", "3 weeks", "--examples", "3"], "--deadline 3 weeks: unit 'weeks' is unknown"),
        (["mine:net", "--deadline", "3s"], "--deadline needs --examples"),
        (["mine:two"], "model 'mine:two' takes 2 inputs; clients train on one tensor of examples"),
        (["mine:net", "--set", "lr=3"], "--set lr=3: mine:net is a model; only recipes have settings"),
        (["mine.py", "--input", "3x3"], "--input 3x3: recipe mine.py brings its own data"),
        (["nothing"], "model 'nothing' is neither one of resnet18, cnn, rnn, demo"),
        (["mine:net", "--measure", "1/3"], "width 1/3 is not one of"),
    ],
)
def test_mistakes_are_one_line_each(command, words, says):
    code, _, err = command("profile", *words)
    assert code == 2
    assert says in err.replace("\n", " ")
    assert "Traceback" not in err


PAGE = Path(__file__).parents[1] / "docs" / "devices.md"


def test_what_the_page_on_devices_says_is_run_as_it_stands(command, tmp_path):
    pytest.importorskip("matplotlib")
    page = PAGE.read_text()
    (table,) = re.findall(r"```csv\n(.*?)```", page, re.S)
    (tmp_path / "fleet.csv").write_text(table)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("fjord ")]
    assert {words[1] for words in commands} >= {"profile", "tiers", "run"}
    for words in commands:
        short = ["--set", "num_rounds=1", "--no-page"] if words[1] == "run" else []
        code, _, err = command(*words[1:], *short)
        assert code == 0, (words, err)
    found = json.loads((tmp_path / "here.json").read_text())
    keys = set(re.findall(r"^\| `([a-z_.]+)` \|", page.partition("### The JSON")[2].partition("\n## ")[0], re.M))
    assert {*found, *(f"costs.{key}" for key in found["costs"][0])} == keys
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["width"] in fjord.uniform(5).widths


# ---------------------------------------------------------------------------------------------- on Flower nodes


@pytest.fixture
def grid(tmp_path):
    """A grid of nodes, each client 0, 1, ... with a budget of its own; counts how often a node measures."""
    pytest.importorskip("flwr")
    from fjord.app import device, serve
    from fjord.engines.flower.client import client_app
    from fjord.engines.flower.codec import unpack
    from fjord.engines.flower.engine import Order, Patience
    from fjord.engines.flower.grid import LocalGrid

    (tmp_path / "mine.py").write_text(MINE)
    measured, sent = [], []

    def make(order):
        real = device(order)
        return replace(real, profile=lambda examples: measured.append(examples) or real.profile(examples))

    def run(*budgets):
        def note(message, reply):
            if message.metadata.message_type == "train":
                head, _ = unpack(message.content)
                sent.append((head["client"], head["widths"]))
            return reply

        nodes = [{"client-id": client, **budget} for client, budget in enumerate(budgets)]
        local = LocalGrid(client_app(make), nodes, note)
        order = Order(str(tmp_path / "mine.py"), ("tiers=1:1", "num_rounds=2", "cohort_size=4", "workers=1"))
        run_once = lambda name: serve(local, order, Patience(30.0), tmp_path / name)  # noqa: E731
        return run_once, measured, sent

    return run


def test_a_node_measures_its_budget_once_and_is_sent_no_more_than_fits(grid):
    run, measured, sent = grid({"memory": "1GB"}, {"deadline": "1h", "ceiling": "1/2"}, {})
    run("first")
    assert measured == [10, 10]  # a node that is one client knows how many examples it has
    assert set(sent) == {(0, "1/2:1/2,1:1/2"), (1, "1/2:1"), (2, "1/2:1/2,1:1/2")}
    run("second")
    assert len(measured) == 2


def test_a_node_whose_budget_is_too_small_or_wrong_is_named_with_the_reason(grid):
    run, _, sent = grid({"memory": "1kB"}, {"deadline": "soon", "examples": 5}, {})
    dropped = run("run").metrics()[0]["dropped"]
    assert {client for client, _ in sent} == {2}
    assert "node 100: nothing fits: --memory 1kB: the smallest width 1/2 needs" in dropped["0"]
    assert "node 101: deadline soon: is not a number with a unit" in dropped["1"]


def test_a_fleet_passes_its_budget_on():
    pytest.importorskip("flwr")
    from fjord.engines.flower.commands import node_configs

    (config,) = node_configs(1, bind=True, budget=Budget.words("deadline=60s examples=500"))
    assert config == 'partition-id=0 num-partitions=1 client-id=0 deadline="60s" examples="500"'
    with pytest.raises(ValueError, match="--budget deadline soon: is not a number"):
        Budget.words("deadline=soon")
    with pytest.raises(ValueError, match="--budget 60s: write it as limit=value"):
        Budget.words("60s")
