"""One real client, measured: its memory."""

import sys
from fractions import Fraction

import pytest
import torch
from profiles import mlp, quick  # noqa: F401
from torch import nn

from fjord.core.width import uniform_widths
from fjord.experiments.profiling import measure
from fjord.experiments.profiling.measure import gather_examples
from fjord.experiments.profiling.workload import federation_of_model
from fjord.training.objective import ordered_dropout

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")


def measured_memory(federation, ceiling, objective) -> int:
    return (
        measure.TrainingBench(federation, federation.data.examples(0), objective)
        .measure(Fraction(ceiling))
        .memory
    )


def with_examples(net, examples: int):
    """A federation of one client with so many examples of 40 kB."""
    federation = federation_of_model(net, torch.randn(2, 10_000), uniform_widths(2), 10, 1)
    federation.data = measure.single_client_data(
        gather_examples(federation.data, 10, examples), federation.data
    )
    return federation


@LINUX
def test_measured_memory_counts_the_examples_once_however_many_steps_are_timed(monkeypatch):
    net = nn.Sequential(nn.Linear(10_000, 4), nn.ReLU(), nn.Linear(4, 2))
    few, many = with_examples(net, 20), with_examples(net, 600)  # which are 23.2 MB more
    found = []
    for seconds in (1e-9, 0.2):  # from a part of one epoch to many
        monkeypatch.setattr(measure, "SECONDS", seconds)
        found.append(
            measured_memory(many, 1, ordered_dropout()) - measured_memory(few, 1, ordered_dropout())
        )
    assert found == pytest.approx([23_200_000] * 2, rel=0.1)
