"""What training costs at each width, and a real round."""

import sys
import time
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from profiles import mlp, quick  # noqa: F401
from torch import nn

import fjord
from fjord.core.width import uniform_widths
from fjord.devices.budget import Budget
from fjord.experiments.profiling import measure
from fjord.experiments.profiling.measure import gather_examples, received_copy
from fjord.experiments.profiling.predict import workload_shape
from fjord.experiments.profiling.profile import profile_federation
from fjord.experiments.profiling.workload import federation_of_model
from fjord.training.assignment import total_bytes
from fjord.training.local import ClientTrainer
from fjord.training.objective import self_distillation

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")


def test_a_profile_tells_what_a_client_of_each_ceiling_is_sent_and_computes():
    space = uniform_widths(2)
    profile = fjord.profile_training(
        mlp(), torch.randn(4, 12), widths=space, batch_size=8, name="mlp", device="here"
    )
    assert (profile.model, profile.device, profile.method, profile.kd_kinds) == (
        "mlp",
        "here",
        "fjord-kd",
        (True, False),
    )
    federation = federation_of_model(mlp(), torch.randn(4, 12), space, 8, 1)
    weights = {half: 12 * h + h + h * h + h + 3 * h + 3 for half, h in ((False, 40), (True, 20))}
    macs = {half: 12 * h + h * h + 3 * h for half, h in ((False, 40), (True, 20))}
    for kd in (True, False):
        small, full = (profile.find_cost(width, kd) for width in space.widths)
        assert [c.bytes_down for c in (small, full)] == [4 * weights[True], 4 * weights[False]]
        assert (
            small.bytes_up
            == small.bytes_down
            == total_bytes(federation.assign_at(Fraction(1, 2)).tensors)
        )
        assert small.macs_per_step == 3 * 8 * macs[True]
        both = (
            2 * macs[False] + macs[True] if kd else macs[False] + macs[True]
        )  # of two steps, one at each width
        assert full.macs_per_step == 3 * 8 * both // 2
        assert (
            all(c.time == c.memory == "measured" for c in (small, full)) or sys.platform != "linux"
        )
        assert min(c.step_seconds for c in (small, full)) > 0


@LINUX
def test_measured_memory_holds_at_least_slice_gradients_and_activations():
    wide = nn.Sequential(
        nn.Linear(99, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 3)
    )
    inputs = torch.randn(2, 99)
    profile = fjord.profile_training(
        wide, inputs, widths=uniform_widths(2), batch_size=512, kd=True
    )
    federation = federation_of_model(wide, inputs, uniform_widths(2), 512, 1)
    for width in profile.widths:
        rows = gather_examples(federation.data, 512, 2 * 512)
        shape = workload_shape(federation, width, self_distillation(), rows, {})
        assert (
            1 <= profile.find_cost(width).memory_bytes / shape.memory < 4
        )  # what libraries and the allocator add
    assert (
        profile.find_cost(Fraction(1)).memory_bytes
        > 1.8 * profile.find_cost(Fraction(1, 2)).memory_bytes
    )


def test_an_experiment_is_measured_with_its_own_method_batches_and_data():
    def data(seed):
        x = torch.randn(60, 12)
        return fjord.partition_tensors(
            (x, torch.randint(3, (60,))), torch.arange(60) % 3, (x, torch.randint(3, (60,)))
        )

    numbers = {"widths": uniform_widths(2), "tiers": "uniform-2", "batch_size": 5}
    recipe = fjord.Experiment(name="mine", model=mlp, data=data, method="heterofl", **numbers)
    assert (
        fjord.profile_training(replace(recipe, max_local_steps=3), measure=["1/2"]).max_steps == 3
    )
    profile = fjord.profile_training(recipe)
    assert (profile.model, profile.method, profile.batch_size, profile.kd_kinds) == (
        "mine",
        "heterofl",
        5,
        (None,),
    )
    assert profile.costs[1].macs_per_step == 3 * 5 * (
        12 * 40 + 40 * 40 + 3 * 40
    )  # only at its ceiling
    assert fjord.profile_training(
        recipe, widths=fjord.WidthSpace.of(["3/5", "1"]), measure=["3/5"]
    ).widths[0] == Fraction(3, 5)
    scaffold = fjord.profile_training(
        replace(recipe, scaffold=True, method="fjord"), kd=False, measure=["1/2"]
    )
    cost = scaffold.find_cost(Fraction(1))
    assert cost.bytes_down == 2 * cost.bytes_up
    assert (cost.time, cost.memory) == ("predicted", "predicted")


def test_a_width_that_runs_out_of_memory_does_not_fit_and_no_wider_one_is_tried(monkeypatch):
    tried, real = [], measure.TrainingBench._measure

    def measured(bench, ceiling):
        if ceiling > Fraction(2, 5):
            raise MemoryError
        return real(bench, ceiling)

    monkeypatch.setattr(measure.TrainingBench, "_measure", measured)
    federation = federation_of_model(mlp(), torch.randn(2, 12), None, 8, 1)
    profile = profile_federation(federation, kd=False, on_progress=tried.append)
    assert [c.time for c in profile.costs] == ["measured", "measured", "failed", "failed", "failed"]
    assert len(tried) == 3
    assert profile.widest_fit(Budget(memory=10**12)) == Fraction(2, 5)


def real_round(federation, ceiling) -> float:
    """Return the seconds of a real round: the best of three, as other work only adds."""
    best = float("inf")
    for _ in range(3):
        trainer = ClientTrainer(federation.model, federation.data, federation.training, 0)
        started = time.perf_counter()
        trainer(received_copy(federation.assign_at(ceiling)))
        best = min(best, time.perf_counter() - started)
    return best


def test_the_width_picked_meets_the_deadline_and_the_next_does_not():
    inputs = torch.randn(128, 64)
    net = nn.Sequential(
        nn.Linear(64, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(), nn.Linear(1600, 5)
    )
    federation = federation_of_model(net, inputs, fjord.WidthSpace.of(["1/16", "1"]), 64, 1)
    examples = 30 * 64
    x, y = (t[torch.arange(examples) % 128] for t in federation.data.examples(0))
    federation.data = fjord.GeneratedData(1, lambda _: (x, y), federation.data.test)
    for attempt in range(3):  # other work may disturb one
        profile = profile_federation(federation, kd=False, examples=examples)
        budget = Budget(examples=examples)
        low, high = (verdict.seconds for verdict in profile.check_budget(budget))
        deadline = (low + high) / 2
        picked = profile.widest_fit(replace(budget, deadline=deadline))
        assert picked == Fraction(1, 16)
        real = [real_round(federation, width) for width in (picked, Fraction(1))]
        if high > 3 * low and real[0] < deadline < real[1]:
            return
        assert attempt < 2, (low, high, real)
