"""The simulated clock: durations of clients and rounds computed by hand, and foretold."""

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch
from clocks import ROWS, experiment
from fed_oracles import assignments, cohort_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fjord
from fjord.core.seeding import derive_seed
from fjord.core.width import Width
from fjord.devices.speed_table import SpeedTable, jitter_factor
from fjord.devices.speeds import ClientWorkload, TierSpeed
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.runner import metrics_row
from fjord.federated.methods import METHODS, find_method
from fjord.models import shakespeare_rnn
from fjord.training.assignment import total_bytes
from fjord.training.local import ClientTrainer
from fjord.training.objective import Objective

# ------------------------------------------------------------------------------- one client by hand


def test_a_client_takes_its_download_its_training_and_its_upload():
    pace = TierSpeed.from_row(
        {"ceiling": "1", "macs_per_second": "2M", "down": "8Mbit", "up": "1MB/s", "latency": "20ms"}
    )
    work = ClientWorkload(
        bytes_down=3_000_000, bytes_up=500_000, steps=7, macs=5_000_000, width=Width(1)
    )
    assert pace.total_seconds(work) == pytest.approx(2 * 0.020 + 3.0 + 2.5 + 0.5)
    steps = TierSpeed.from_row(
        {"ceiling": "1", "seconds_per_step": "1/5:20ms 1:0.3s", "down": "8Mbit", "up": "1MB/s"}
    )
    assert steps.total_seconds(work) == pytest.approx(3.0 + 7 * 0.3 + 0.5)
    assert steps.total_seconds(replace(work, width=Width(1, 5))) == pytest.approx(
        3.0 + 7 * 0.02 + 0.5
    )
    with pytest.raises(
        ValueError, match=r"tier 1 has the seconds of a step at width 1/5, 1, and .* width 2/5"
    ):
        steps.total_seconds(replace(work, width=Width(2, 5)))


def test_stragglers_are_log_normal_with_median_one_and_drawn_by_client_and_round():
    draws = [
        math.log(jitter_factor(0.5, derive_seed(7, "clock", t, c)))
        for t in range(40)
        for c in range(100)
    ]
    assert fmean(draws) == pytest.approx(0, abs=0.03)
    assert stdev(draws) == pytest.approx(0.5, abs=0.03)
    assert jitter_factor(0.0, 5) == 1.0
    clock = SpeedTable.from_rows([ROWS[0] | {"jitter": 0.5}])
    work = ClientWorkload(1000, 1000, 1, 10**4, Width(1))
    once, again = (
        clock.client_seconds(Width(1), work, seed=7, round_index=3, client_id=5) for _ in range(2)
    )
    assert (
        once
        == again
        == clock.tier_speeds[0].total_seconds(work)
        * jitter_factor(0.5, derive_seed(7, "clock", 3, 5))
    )


@given(st.integers(0, 2**63 - 1))
def test_no_seed_gives_a_delay_that_is_not_a_number_above_zero(seed):
    assert 0 < jitter_factor(5.0, seed) < math.inf


def test_a_device_has_the_pace_of_the_highest_tier_not_above_it():
    clock = SpeedTable.from_rows(reversed(ROWS))
    assert [str(clock.find_speed(Width(n, 5)).ceiling) for n in (1, 2, 3, 4, 5)] == [
        "1/5",
        "1/5",
        "3/5",
        "3/5",
        "3/5",
    ]
    with pytest.raises(ValueError, match="no tier for ceiling 1/10; the lowest is 1/5"):
        clock.find_speed(Width(1, 10))


# ---------------------------------------------------------------------------------------- forecasts


def three_widths(logits_at, target, width, widest):
    """A loss that runs the narrowest submodel twice, and the sampled and the widest one."""
    scores = [logits_at(w) for w in (Width(1, 2), Width(1, 2), width, widest)]
    return sum(nn.functional.cross_entropy(s, target) for s in scores)


def run_by_three(width, widest):
    return (Width(1, 2), Width(1, 2), width, widest)


OWN = replace(find_method("fjord"), name="own", objective=Objective(three_widths, run_by_three))


CUT = {"local_epochs": 2, "max_local_steps": 5, "batch_size": 3}


@pytest.mark.parametrize("method", [*METHODS, OWN], ids=[*METHODS, "own"])
def test_a_round_lasts_as_long_as_its_slowest_client_counted_by_hand_and_is_foretold(method):
    made = experiment(method=method, **(CUT if method in ("fjord-kd", "fjord-efd", "efd") else {}))
    for federation in made.federations():
        trainer = ClientTrainer(federation.model, federation.data, federation.training, made.seed)
        durations = []
        for task in assignments(federation, 0):
            ceiling, update = federation.devices.ceiling(task.client_id, 0), trainer(task)
            assert federation.timer.cost_model(task) == (
                sum(update.widest_steps.values()),
                update.macs,
            )
            down, up, speed, latency = (
                (4e3, 2e3, 3e4, 0.05) if ceiling >= Width(3, 5) else (1e3, 500, 1e4, 0.1)
            )
            durations.append(
                2 * latency
                + task.num_bytes / down
                + update.macs / speed
                + total_bytes(update.tensors) / up
            )
        record = next(federation.rounds(InProcessEngine(federation, trainer=trainer)))
        assert record.simulated_seconds == pytest.approx(max(durations))
        row = metrics_row(record, 0)
        for name in ("bytes_down", "bytes_up"):
            assert row[name] == sum(tier[name] for tier in row["tiers"].values()) > 0


def test_the_forecast_holds_for_recurrent_networks_too():
    text = torch.randint(0, 90, (60, 12))
    data = fjord.partition_tensors((text, text), torch.arange(60) % 4, (text, text))
    made = experiment(
        model=shakespeare_rnn, data=lambda seed: data, cohort_size=2, method="fjord-kd"
    )
    federation = next(made.federations())
    trainer = ClientTrainer(federation.model, data, federation.training, made.seed)
    for task in assignments(federation, 0):
        assert federation.timer.cost_model(task)[1] == trainer(task).macs


def test_steps_of_one_second_on_a_free_network_count_steps(tmp_path):
    free = {"down": "1e12GB/s", "up": "1e12GB/s"}
    tiers = [{"ceiling": c, "seconds_per_step": s, **free} for c, s in (("1/2", "1s"), ("1", "2s"))]
    made = experiment(clock=SpeedTable.from_rows(tiers), num_rounds=4)
    federation = next(made.federations())
    batches = [1, 2, 2, 2, 3, 4, 1, 6, 2, 3]  # of SIZES; a last example joins the batch before it
    for row in fjord.run_experiment(made, tmp_path / "run").metrics():
        cohort = [
            (client, 2 * grant.ceiling) for client, grant in cohort_of(federation, row["round"])
        ]
        assert row["simulated_seconds"] == pytest.approx(
            max(batches[client] * tier for client, tier in cohort)
        )
