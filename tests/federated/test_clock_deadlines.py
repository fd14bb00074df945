"""Deadlines on the simulated clock leave out exactly the late, and change nothing else."""

from statistics import median

import pytest
import torch
from clocks import ROWS, SIZES, experiment, population, run, weights, without
from fed_oracles import assignments

import fjord
from fjord.data.federated import CountedData
from fjord.devices.speed_table import SpeedTable
from fjord.engines.in_process import InProcessEngine
from fjord.training.assignment import Rejected


class Watching(InProcessEngine):
    """Notes whom it trains; drops those it is told to, as if they had failed."""

    def __init__(self, federation, left_out=None):
        super().__init__(federation)
        self.left_out, self.trained = left_out or {}, {}

    def train(self, tasks):
        for task, reply in super().train(tasks):
            self.trained.setdefault(task.round_index, []).append(task.client_id)
            yield (
                task,
                Rejected("left out")
                if task.client_id in self.left_out.get(task.round_index, ())
                else reply,
            )


def watched(path, left_out=None, **changed):
    engines = []

    def make(federation, stage):
        engines.append(Watching(federation, left_out))
        return engines[-1]

    return fjord.run_experiment(experiment(**changed), path, engine=make), engines[0]


def halfway(**changed):
    """A deadline that half of the clients of the first round meet."""
    federation = next(experiment(**changed).federations())
    ceiling = federation.devices.ceiling
    return median(
        federation.timer.predicted_seconds(task, ceiling(task.client_id, 0))
        for task in assignments(federation, 0)
    )


@pytest.mark.parametrize(
    "extra", [{}, {"nova": True, "prox": 0.1}, {"scaffold": True, "server": "fedadam"}]
)
def test_a_deadline_leaves_out_exactly_the_late_and_they_are_not_trained(tmp_path, extra):
    federation = next(experiment(**extra).federations())
    deadline = halfway(**extra)
    hurried, engine = watched(tmp_path / "hurried", deadline=deadline, **extra)
    late = {}
    for row in hurried.metrics():
        expected = {}
        for task in assignments(
            federation, row["round"]
        ):  # their time does not depend on the weights
            seconds = federation.timer.predicted_seconds(
                task, federation.devices.ceiling(task.client_id, 0)
            )
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
        assert (row["examples"], row["loss"], row["simulated_seconds"], len(row["dropped"])) == (
            0,
            None,
            0.001,
            6,
        )
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
    return fjord.GeneratedData(
        10, lambda c: (torch.randn(SIZES[c], 6), torch.randint(0, 3, (SIZES[c],))), data.test, 0
    )


@pytest.mark.parametrize("data", [population, noisy], ids=["counted", "made"])
def test_workers_and_kills_do_not_matter(tmp_path, data):
    assert isinstance(data(0), CountedData) == (data is population)
    hurry = {"data": data, "clock": SpeedTable.from_rows([row | {"jitter": 0.4} for row in ROWS])}
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
        fjord.run_experiment(experiment(**hurry), tmp_path / "cut", on_round=stop)
    again = fjord.run_experiment(experiment(**hurry), tmp_path / "cut", resume=True)
    assert weights(again) == weights(calm)
    assert without(again.metrics()) == without(calm.metrics())


def test_a_run_is_not_resumed_on_another_clock(tmp_path):
    run(tmp_path / "run", num_rounds=1)
    with pytest.raises(ValueError, match="was begun with clock_tiers="):
        fjord.run_experiment(
            experiment(num_rounds=1, clock=SpeedTable.from_rows([ROWS[0]])),
            tmp_path / "run",
            resume=True,
        )
    with pytest.raises(ValueError, match=r"was begun with deadline=None, the recipe now says 9\.0"):
        fjord.run_experiment(experiment(num_rounds=1, deadline=9), tmp_path / "run", resume=True)
