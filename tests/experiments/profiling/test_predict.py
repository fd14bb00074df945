"""Costs of widths that were not run, predicted from those that were."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiles import mlp
from torch import nn

import fjord
from fjord.core.width import parse_width, uniform_widths
from fjord.elastic.footprint import Footprint
from fjord.experiments.profiling.measure import StepMeasurement
from fjord.experiments.profiling.predict import (
    WorkloadShape,
    predict_memory,
    predict_setup,
    predict_steps,
    workload_shape,
)
from fjord.experiments.profiling.workload import federation_of_model
from fjord.training.assignment import Assignment
from fjord.training.objective import ordered_dropout, self_distillation


def shape(ceiling: str, kd: bool, macs=lambda w: int(1000 * w * w)) -> WorkloadShape:
    """A client's shapes with costs that can be reckoned."""
    space = uniform_widths(5).up_to(ceiling)
    costs = {w: Footprint(w, macs(w), 0, 0, 0, int(10_000 * w)) for w in space.widths}
    passes = {}
    for width in space.widths:
        passes[width] = (width,)
        if kd and width != space.largest:
            passes[width] = (space.largest, width)
    assignment = Assignment(
        client_id=0,
        round_index=0,
        ceiling=space.largest,
        lr=0.1,
        units={},
        space=space,
        tensors={},
    )
    return WorkloadShape(assignment, passes, costs, batch_size=4, momentum=False)


@pytest.mark.parametrize("kd", [False, True])
def test_steps_of_ceilings_not_run_are_the_sum_of_the_passes_that_were(kd):
    seconds = {w: 0.01 + float(w) ** 2 for w in uniform_widths(5).widths}
    full = shape("1", kd)
    steps = {w: sum(seconds[run] for run in runs) for w, runs in full.passes.items()}
    for ceiling in ("1/5", "3/5", "4/5"):
        other = shape(ceiling, kd)
        found = predict_steps(other, {Fraction(1): (full, StepMeasurement(steps, 0.0, 0, 0))})
        assert found == pytest.approx(
            {w: sum(seconds[run] for run in runs) for w, runs in other.passes.items()}
        )


def test_steps_of_submodels_never_run_follow_multiply_accumulates():
    known = {}
    for ceiling in ("1/5", "2/5"):
        one = shape(ceiling, False)
        known[parse_width(ceiling)] = (
            one,
            StepMeasurement({w: 1 + one.costs[w].macs for w in one.costs}, 1.0, 0, 0),
        )
    full = shape("1", False)
    assert predict_steps(full, known) == pytest.approx(
        {w: 1 + cost.macs for w, cost in full.costs.items()}
    )


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
    known = {
        parse_width(w): (shape(w, False), StepMeasurement({}, t, 0, 0))
        for w, t in (("1/5", 1.0), ("1", 9.0))
    }
    assert predict_setup(shape("3/5", False), known) == 5.0


def test_the_loss_is_asked_which_submodels_it_runs():
    federation = federation_of_model(mlp(), torch.randn(4, 12), uniform_widths(2), 8, 1)
    half, whole = uniform_widths(2).widths
    batch = federation.data.examples(0)
    assert workload_shape(federation, whole, ordered_dropout(), batch, {}).passes == {
        half: (half,),
        whole: (whole,),
    }
    assert workload_shape(federation, whole, self_distillation(), batch, {}).passes == {
        half: (whole, half),
        whole: (whole,),
    }


def test_what_must_be_held_at_once_is_not_the_sum_of_what_is_held_in_turn():
    # Activations go as gradients come: 400 floats an example early, and most weights late.
    net = nn.Sequential(
        nn.Linear(1, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 2)
    )
    federation = federation_of_model(net, torch.randn(4, 1), fjord.WidthSpace.of(["1"]), 100, 1)
    one = workload_shape(
        federation, Fraction(1), ordered_dropout(), federation.data.examples(0), {}
    )
    weights = 4 * (400 + 400 + 400 * 400 + 400 + 2 * 400 + 2)
    examples = 100 * (4 + 8)
    assert one.least == 3 * weights + examples  # as it came, in training, and as it is sent back
    assert one.memory >= one.least
