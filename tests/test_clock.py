"""The simulated clock: durations computed by hand, deadlines that leave out exactly whom they should, and reports."""

import json
import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fjord
from fjord.cli import main
from fjord.data.federated import Counted
from fjord.devices.clock import PRESETS, Clock, delay, find_clock
from fjord.devices.pace import Pace, Work
from fjord.engines.inprocess import InProcess
from fjord.experiment import Experiment
from fjord.local import Trainer, size
from fjord.methods import METHODS, find_method
from fjord.models import shakespeare_rnn
from fjord.report.groups import Run
from fjord.report.reach import common_level, parse_level, reached, shown, spent, usual_levels
from fjord.runner import as_row
from fjord.seeding import derive
from fjord.width import Width

ROOT = Path(__file__).parents[1]
SIZES = [3, 5, 8, 9, 12, 17, 4, 25, 6, 10]
"""Examples of each client: with batches of 4 some end in a batch of one."""
ROWS = [
    {"ceiling": "1/5", "macs_per_second": 1e4, "down": "1kB/s", "up": "500B/s", "latency": "100ms"},
    {"ceiling": "3/5", "macs_per_second": "30k", "down": "4kB/s", "up": "2kB/s", "latency": 0.05},
]
CLOCK = Clock.of(ROWS)


def net():
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


def population(seed, sizes=SIZES):
    x, clients = torch.randn(sum(sizes) + 40, 6), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y, n = x[:, :3].argmax(1), sum(sizes)
    return fjord.partition((x[:n], y[:n]), clients, (x[n:], y[n:]), torch.arange(40) % len(sizes))


def experiment(**changed):
    short = {
        "num_rounds": 3,
        "cohort_size": 6,
        "batch_size": 4,
        "eval_every": 1,
        "checkpoint_seconds": 0.0,
        "workers": 1,
    }
    made = {
        "name": "toy",
        "model": net,
        "data": population,
        "widths": ("1/2", "1"),
        "tiers": "uniform-2",
        "clock": CLOCK,
    }
    return Experiment(**(made | short | changed))


def run(path, **changed):
    return fjord.run(experiment(**changed), path)


def without(rows, *names):
    return [{key: value for key, value in row.items() if key not in ("seconds", *names)} for row in rows]


def weights(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.path.glob("model*.safetensors"))}


# ------------------------------------------------------------------------------------------- one client by hand


def test_a_client_takes_its_download_its_training_and_its_upload():
    pace = Pace.of({"ceiling": "1", "macs_per_second": "2M", "down": "8Mbit", "up": "1MB/s", "latency": "20ms"})
    work = Work(bytes_down=3_000_000, bytes_up=500_000, steps=7, macs=5_000_000, width=Width(1))
    assert pace.seconds(work) == pytest.approx(2 * 0.020 + 3.0 + 2.5 + 0.5)
    steps = Pace.of({"ceiling": "1", "seconds_per_step": "1/5:20ms 1:0.3s", "down": "8Mbit", "up": "1MB/s"})
    assert steps.seconds(work) == pytest.approx(3.0 + 7 * 0.3 + 0.5)
    assert steps.seconds(replace(work, width=Width(1, 5))) == pytest.approx(3.0 + 7 * 0.02 + 0.5)
    with pytest.raises(ValueError, match=r"tier 1 has the seconds of a step at width 1/5, 1, and .* width 2/5"):
        steps.seconds(replace(work, width=Width(2, 5)))


def test_stragglers_are_log_normal_with_median_one_and_drawn_by_client_and_round():
    draws = [math.log(delay(0.5, derive(7, "clock", t, c))) for t in range(40) for c in range(100)]
    assert fmean(draws) == pytest.approx(0, abs=0.03)
    assert stdev(draws) == pytest.approx(0.5, abs=0.03)
    assert delay(0.0, 5) == 1.0
    clock = Clock.of([ROWS[0] | {"jitter": 0.5}])
    work = Work(1000, 1000, 1, 10**4, Width(1))
    once, again = (clock.seconds(Width(1), work, seed=7, round_index=3, client_id=5) for _ in range(2))
    assert once == again == clock.paces[0].seconds(work) * delay(0.5, derive(7, "clock", 3, 5))


@given(st.integers(0, 2**63 - 1))
def test_no_seed_gives_a_delay_that_is_not_a_number_above_zero(seed):
    assert 0 < delay(5.0, seed) < math.inf


def test_a_device_has_the_pace_of_the_highest_tier_not_above_it():
    clock = Clock.of(reversed(ROWS))
    assert [str(clock.pace(Width(n, 5)).ceiling) for n in (1, 2, 3, 4, 5)] == ["1/5", "1/5", "3/5", "3/5", "3/5"]
    with pytest.raises(ValueError, match="no tier for ceiling 1/10; the lowest is 1/5"):
        clock.pace(Width(1, 10))


# --------------------------------------------------------------------------------------------------- tables


def test_a_table_reads_the_same_from_csv_json_and_python(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "a.csv").write_text(
        "ceiling,macs_per_second,seconds_per_step,down,up,latency\n1/5,1e4,,1kB/s,500B/s,100ms\n3/5,30k,,4kB/s,2kB/s,50ms\n"
    )
    assert find_clock(str(tmp_path / "a.json")) == find_clock(str(tmp_path / "a.csv")) == Clock.of(ROWS)
    (tmp_path / "mark.csv").write_text((tmp_path / "a.csv").read_text(), encoding="utf-8-sig")  # as spreadsheets do
    assert find_clock(str(tmp_path / "mark.csv")) == Clock.of(ROWS)
    phones = find_clock("phones")
    assert [str(p.ceiling) for p in phones.paces] == ["1/5", "2/5", "3/5", "4/5", "1"]
    assert list(PRESETS) == ["phones"]
    assert (phones.paces[0].down, phones.paces[0].up, phones.paces[0].macs_per_second) == (625_000, 125_000, 2e9)


def test_a_profile_of_a_device_gives_its_seconds(tmp_path):
    both = [
        {"width": w, "kd": kd, "step_seconds": s * (2 if kd else 1), "setup_seconds": 0.5}
        for w, s in (("1/5", 0.1), ("1", 0.4))
        for kd in (True, False)
    ]
    (tmp_path / "phone.json").write_text(json.dumps({"fjord_profile": 1, "costs": both}))
    row = {"ceiling": "1/5", "profile": "phone.json", "down": "1MB/s", "up": "1MB/s"}
    (tmp_path / "t.json").write_text(json.dumps([row | {"kd": True}]))
    pace = find_clock(str(tmp_path / "t.json")).paces[0]
    assert pace.compute(Work(0, 0, 10, 0, Width(1))) == pytest.approx(10 * 0.8 + 0.5)
    for kd, said in ((None, "both, with distillation and without"), ("maybe", "no step with kd=maybe")):
        with pytest.raises(ValueError, match=said):
            Pace.of(row | {"kd": kd}, tmp_path)
    failed = [cost | {"time": "failed", "step_seconds": 0.0} for cost in both]
    (tmp_path / "weak.json").write_text(json.dumps({"fjord_profile": 1, "costs": failed}))
    with pytest.raises(ValueError, match=r"weak\.json: no width could be trained on that device"):
        Pace.of(row | {"profile": "weak.json", "kd": "true"}, tmp_path)
    with pytest.raises(ValueError, match=r"nothing\.json: is no output of fjord profile"):
        Pace.of(row | {"profile": "nothing.json"}, tmp_path)


WRONG = [
    ([{"ceiling": "1"}], "tier 1: has no 'down'"),
    ([ROWS[0] | {"speed": 3}], "tier 1/5: 'speed' is not one of ceiling, macs_per_second"),
    ([ROWS[0] | {"seconds_per_step": 3}], "tier 1/5: give one of macs_per_second, seconds_per_step, profile"),
    ([ROWS[0] | {"macs_per_second": None}], "tier 1/5: give one of macs_per_second, seconds_per_step, profile"),
    ([ROWS[0] | {"macs_per_second": "0"}], "macs_per_second 0: must be above 0"),
    ([ROWS[0] | {"macs_per_second": "fast"}], "macs_per_second fast: is not a number"),
    ([ROWS[0] | {"down": "5"}], "down 5: has no unit"),
    ([ROWS[0] | {"up": "5 parsec"}], "unit 'parsec' is unknown"),
    ([ROWS[0] | {"latency": "-1s"}], "latency -1s: must be above 0"),
    ([ROWS[0] | {"jitter": -0.1}], "jitter -0.1: must be a number from 0 to 5"),
    ([ROWS[0] | {"ceiling": "7/5"}], "width '7/5' is not a fraction above 0"),
    ([ROWS[0], ROWS[0]], "ceiling 1/5 is there more than once"),
    ([], "there is no tier in the table"),
    ({"1/5": 3}, "a list of tiers is needed"),
]


@pytest.mark.parametrize(("table", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_a_bad_table_is_refused_with_its_file_in_words(tmp_path, table, said):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=f"clock {re.escape(str(path))}: .*{re.escape(said)}"):
        find_clock(str(path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clock": "fones"}, "clock='fones' is not phones, nor a .csv or .json file"),
        ({"clock": "gone.csv"}, "clock gone.csv: cannot be read"),
        ({"clock": None, "deadline": 60}, "deadline=60s is on the simulated clock: it needs clock="),
        ({"deadline": "soon"}, "deadline soon: is not a number with a unit"),
        ({"deadline": 0}, "deadline 0: must be above 0"),
        ({"deadline": "-1min"}, "deadline -1min: must be above 0"),
        ({"deadline": math.nan}, "deadline"),
        ({"clock": Clock.of([ROWS[1]])}, "no tier for ceiling 1/2; the lowest is 3/5"),
        (
            {"clock": Clock.of([{"ceiling": "1/5", "seconds_per_step": "1s", "down": "1MB/s", "up": "1MB/s"}])},
            "tier 1/5 has the seconds of a step at width 1/5, and its clients train the units of width 1/2",
        ),
    ],
)
def test_what_the_clock_lacks_shows_before_a_run_begins(tmp_path, changed, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        run(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------- forecasts


def three_widths(logits_at, target, width, widest):
    """A loss of one's own that runs the narrowest submodel twice, and the sampled and the widest one."""
    scores = [logits_at(w) for w in (Width(1, 2), Width(1, 2), width, widest)]
    return sum(nn.functional.cross_entropy(s, target) for s in scores)


OWN = replace(find_method("fjord"), name="own", objective=three_widths)


CUT = {"local_epochs": 2, "max_local_steps": 5, "batch_size": 3}


@pytest.mark.parametrize("method", [*METHODS, OWN], ids=[*METHODS, "own"])
def test_a_round_lasts_as_long_as_its_slowest_client_counted_by_hand_and_is_foretold(method):
    made = experiment(method=method, **(CUT if method in ("fjord-kd", "fjord-efd", "efd") else {}))
    for federation in made.federations():
        trainer = Trainer(federation.model, federation.data, federation.training, made.seed)
        durations = []
        for task in federation.tasks(0):
            ceiling, update = federation.devices.ceiling(task.client_id, 0), trainer(task)
            assert federation.timer.forecast(task) == (sum(update.reach.values()), update.macs)
            down, up, speed, latency = (4e3, 2e3, 3e4, 0.05) if ceiling >= Width(3, 5) else (1e3, 500, 1e4, 0.1)
            durations.append(2 * latency + task.bytes / down + update.macs / speed + size(update.tensors) / up)
        record = next(federation.rounds(InProcess(trainer, federation.data.test)))
        assert record.simulated_seconds == pytest.approx(max(durations))
        row = as_row(record, 0)
        for name in ("bytes_down", "bytes_up"):
            assert row[name] == sum(tier[name] for tier in row["tiers"].values()) > 0


def test_the_forecast_holds_for_recurrent_networks_too():
    text = torch.randint(0, 90, (60, 12))
    data = fjord.partition((text, text), torch.arange(60) % 4, (text, text))
    made = experiment(model=shakespeare_rnn, data=lambda seed: data, cohort_size=2, method="fjord-kd")
    federation = next(made.federations())
    trainer = Trainer(federation.model, data, federation.training, made.seed)
    for task in federation.tasks(0):
        assert federation.timer.forecast(task)[1] == trainer(task).macs


def test_steps_of_one_second_on_a_free_network_count_steps(tmp_path):
    free = {"down": "1e12GB/s", "up": "1e12GB/s"}
    tiers = [{"ceiling": c, "seconds_per_step": s, **free} for c, s in (("1/2", "1s"), ("1", "2s"))]
    made = experiment(clock=Clock.of(tiers), num_rounds=4)
    federation = next(made.federations())
    batches = [1, 2, 2, 2, 3, 4, 1, 6, 2, 3]  # of SIZES; a last example joins the batch before it
    for row in fjord.run(made, tmp_path / "run").metrics():
        cohort = [(client, 2 * grant.ceiling) for client, grant in federation.cohort(row["round"])]
        assert row["simulated_seconds"] == pytest.approx(max(batches[client] * tier for client, tier in cohort))


# -------------------------------------------------------------------------------------------------- deadlines


class Watching(InProcess):
    """Notes whom it trains; drops those it is told to, as if they had failed."""

    def __init__(self, federation, trainer, left_out=None):
        super().__init__(trainer, federation.data.test)
        self.left_out, self.trained = left_out or {}, {}

    def train(self, tasks):
        for task, reply in super().train(tasks):
            self.trained.setdefault(task.round_index, []).append(task.client_id)
            yield task, "left out" if task.client_id in self.left_out.get(task.round_index, ()) else reply


def watched(path, left_out=None, **changed):
    engines = []

    def make(federation, trainer, stage):
        engines.append(Watching(federation, trainer, left_out))
        return engines[-1]

    return fjord.run(experiment(**changed), path, engine=make), engines[0]


def halfway(**changed):
    """A deadline that half of the clients of the first round meet."""
    federation = next(experiment(**changed).federations())
    ceiling = federation.devices.ceiling
    return median(federation.timer.seconds(task, ceiling(task.client_id, 0)) for task in federation.tasks(0))


@pytest.mark.parametrize("extra", [{}, {"nova": True, "prox": 0.1}, {"scaffold": True, "server": "fedadam"}])
def test_a_deadline_leaves_out_exactly_the_late_and_they_are_not_trained(tmp_path, extra):
    federation = next(experiment(**extra).federations())
    deadline = halfway(**extra)
    hurried, engine = watched(tmp_path / "hurried", deadline=deadline, **extra)
    late = {}
    for row in hurried.metrics():
        expected = {}
        for task in federation.tasks(row["round"]):  # their time does not depend on the weights
            seconds = federation.timer.seconds(task, federation.devices.ceiling(task.client_id, 0))
            if seconds > deadline:
                expected[str(task.client_id)] = f"later than the deadline: {seconds:.3g} s"
        assert row["dropped"] == expected
        assert row["simulated_seconds"] == pytest.approx(deadline) or not expected
        late[row["round"]] = set(map(int, expected))
        assert not late[row["round"]] & set(engine.trained[row["round"]])
        assert (
            sum(tier["clients"] for tier in row["tiers"].values())
            == 6 - len(expected)
            == len(engine.trained[row["round"]])
        )
    dropped, _ = watched(tmp_path / "dropped", late, clock=None, **extra)
    assert late[0]
    assert weights(hurried) == weights(dropped)
    same = ("dropped", "simulated_seconds")  # bytes sent to the late are counted in both
    assert without(hurried.metrics(), *same) == without(dropped.metrics(), *same)


def test_a_round_in_which_everybody_is_late_leaves_the_model_as_it_was(tmp_path):
    made = run(tmp_path / "run", deadline="1ms", num_rounds=2)
    for row in made.metrics():
        assert (row["examples"], row["loss"], row["simulated_seconds"], len(row["dropped"])) == (0, None, 0.001, 6)
        assert row["bytes_up"] == 0 < row["bytes_down"]


def test_a_clock_changes_neither_weights_nor_other_numbers(tmp_path):
    timed, plain = run(tmp_path / "timed"), run(tmp_path / "plain", clock=None)
    assert weights(timed) == weights(plain)
    assert all("simulated_seconds" not in row for row in plain.metrics())
    assert without(timed.metrics(), "simulated_seconds") == without(plain.metrics())
    ample = run(tmp_path / "ample", deadline="1h")
    assert weights(ample) == weights(plain)


def test_an_update_that_cannot_be_used_takes_its_time(tmp_path):
    calm, _ = watched(tmp_path / "calm")
    failing, _ = watched(tmp_path / "failing", {t: range(10) for t in range(3)})
    for a, b in zip(calm.metrics(), failing.metrics(), strict=True):
        assert (a["simulated_seconds"], len(b["dropped"])) == (b["simulated_seconds"], 6)


def noisy(seed):
    """Clients whose examples come from torch's generator, and are made anew each time."""
    data = population(seed)
    return fjord.Generated(10, lambda c: (torch.randn(SIZES[c], 6), torch.randint(0, 3, (SIZES[c],))), data.test, 0)


@pytest.mark.parametrize("data", [population, noisy], ids=["counted", "made"])
def test_workers_and_kills_do_not_matter(tmp_path, data):
    assert isinstance(data(0), Counted) == (data is population)
    hurry = {"data": data, "clock": Clock.of([row | {"jitter": 0.4} for row in ROWS])}
    hurry["deadline"] = halfway(**hurry)
    calm = run(tmp_path / "calm", **hurry)
    assert any(row["dropped"] for row in calm.metrics())
    assert any(row["examples"] for row in calm.metrics())
    pair = run(tmp_path / "pair", workers=2, **hurry)
    assert weights(pair) == weights(calm)
    assert without(pair.metrics()) == without(calm.metrics())

    def stop(record, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fjord.run(experiment(**hurry), tmp_path / "cut", on_round=stop)
    again = fjord.run(experiment(**hurry), tmp_path / "cut", resume=True)
    assert weights(again) == weights(calm)
    assert without(again.metrics()) == without(calm.metrics())


def test_a_run_is_not_resumed_on_another_clock(tmp_path):
    run(tmp_path / "run", num_rounds=1)
    with pytest.raises(ValueError, match="was begun with clock_tiers="):
        fjord.run(experiment(num_rounds=1, clock=Clock.of([ROWS[0]])), tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"was begun with deadline=None, the recipe now says 9\.0"):
        fjord.run(experiment(num_rounds=1, deadline=9), tmp_path / "run", resume=True)


# ------------------------------------------------------------------------------------------------ what is reported


def scored(scores, seconds=2.0, **other):
    tiers = {"1/2": {"clients": 1, "bytes_down": 300, "bytes_up": 200, "macs": 1, "examples": 1}}
    numbers = {w: {"accuracy": s, "perplexity": 1 / s, "loss": 1.0} for w, s in scores.items()}
    row = {"stage": 0, "target": "1", "tiers": tiers, "scores": numbers, "shells": {}, "dropped": {}, "loss": 1.0}
    return row | ({} if seconds is None else {"simulated_seconds": seconds}) | other


CURVE = [{"1/2": 0.3, "1": 0.2}, {}, {"1/2": 0.55, "1": 0.5}, {"1/2": 0.45, "1": 0.72}]


def toy_run(path=Path("run"), seconds=2.0, stages=1):
    rows = [scored(s, seconds, round=i, stage=stage) for stage in range(stages) for i, s in enumerate(CURVE)]
    return Run(path, {"num_rounds": 4, "metric": "accuracy"}, {}, rows, {}, True)


def test_time_and_bytes_to_reach_a_score_count_up_to_the_first_test_that_has_it():
    run = toy_run()
    assert spent(run, "time") == [2, 4, 6, 8]
    assert spent(run, "bytes") == [500, 1000, 1500, 2000]
    half = parse_level("50%", "accuracy")
    assert reached(run, "accuracy", half, "time") == {Width(1, 2): 6, Width(1): 6}
    assert reached(run, "accuracy", parse_level("0.6", "accuracy"), "bytes") == {Width(1): 2000}
    assert reached(run, "perplexity", parse_level("2", "perplexity"), "bytes") == {Width(1, 2): 1500, Width(1): 1500}
    assert reached(toy_run(seconds=None), "accuracy", half, "time") == {}
    assert [str(level) for level in usual_levels([run], "accuracy")] == ["1/2", "3/5", "7/10"]
    assert [str(level) for level in usual_levels([run], "perplexity")] == ["10", "5", "2"]
    assert (common_level(run, "accuracy"), common_level(run, "perplexity")) == (half, 2)
    assert common_level(Run(Path("x"), {}, {}, [], {}, False), "accuracy") is None


def test_models_that_are_trained_one_after_the_other_add_up(tmp_path):
    made = run(tmp_path / "run", method="efd", num_rounds=2)
    rows, read = made.metrics(), Run.read(made)
    assert [row["stage"] for row in rows] == [0, 0, 1, 1]
    assert spent(read, "time")[-1] == pytest.approx(sum(row["simulated_seconds"] for row in rows))
    found = reached(read, "accuracy", parse_level("1%", "accuracy"), "time")
    for stage, width in enumerate(read.config["targets"]):
        before = sum(row["simulated_seconds"] for row in rows if row["stage"] < stage)
        first = next(row for row in rows if row["stage"] == stage)
        assert found[Width(width)] == pytest.approx(before + first["simulated_seconds"])


@pytest.mark.parametrize(
    ("text", "metric"),
    [("0", "accuracy"), ("70", "accuracy"), ("-1%", "accuracy"), ("x", "accuracy"), ("1", "perplexity")],
)
def test_levels_that_cannot_be_are_refused(text, metric):
    with pytest.raises(ValueError, match=f"--reach {text}: is not an? {metric}"):
        parse_level(text, metric)


def test_quantities_are_written_short():
    assert [shown(s, "time") for s in (0.5, 59, 90, 3600, 200_000)] == ["0.5 s", "59 s", "1.5 min", "1 h", "2.31 d"]
    assert [shown(b, "bytes") for b in (12, 1500, 2.5e7, 3e12)] == ["12 B", "1.5 kB", "25 MB", "3 TB"]


# ------------------------------------------------------------------------------------------------- as a user types


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fjord", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


SMALL = ["num_rounds=4", "eval_every=1", "data.num_clients=12", "data.examples=20", "cohort_size=4", "workers=1"]


def test_the_commands_of_the_page_run_and_show_time_and_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    page = (ROOT / "docs" / "clock.md").read_text()
    (table,) = re.findall(r"```csv\n(.*?)```", page, re.S)
    (tmp_path / "paces.csv").write_text(table)
    commands = [
        shlex.split(line.split("#")[0]) for line in "".join(re.findall(r"```sh\n(.*?)```", page, re.S)).splitlines()
    ]
    assert len(commands) >= 4
    for command in commands:
        short = [*(part for s in SMALL for part in ("--set", s)), "--no-page"] if command[1] == "run" else []
        assert call(monkeypatch, *command[1:], *short) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert re.search(r"time to \d+%.*bytes to \d+%", said)
    assert re.search(r"Spent in 4 rounds: [\d.]+ s of simulated time, [\d.]+ kB to clients, [\d.]+ kB back\.", said)
    text = (tmp_path / "compare.html").read_text()
    assert 'id="over-time"' in text
    assert 'id="over-bytes"' in text
    assert "Simulated time to reach a test accuracy" in text


def test_the_python_of_the_page_runs():
    page = (ROOT / "docs" / "clock.md").read_text()
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["recipe"]().find_clock().deadline == 60


def test_a_mistake_is_one_line(monkeypatch, capsys):
    assert call(monkeypatch, "run", "demo", "--set", "clock=fones") == 2
    assert "fjord: clock='fones' is not phones" in capsys.readouterr().err
