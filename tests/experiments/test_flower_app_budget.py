"""Flower nodes measure what their budget lets them train."""

from dataclasses import replace

import pytest
from profiles import MINE, quick  # noqa: F401

from fjord.devices.budget import Budget


@pytest.fixture
def grid(tmp_path):
    """A grid of nodes 0, 1, ..., each with its own budget; counts how often a node measures."""
    pytest.importorskip("flwr")
    from local_grid import LocalGrid

    from fjord.engines.flower.client import client_app
    from fjord.engines.flower.codec import unpack_content
    from fjord.engines.flower.engine import ReplyPolicy
    from fjord.engines.flower.run_spec import RunSpec
    from fjord.experiments.flower_app import make_runtime, serve_run

    (tmp_path / "mine.py").write_text(MINE)
    measured, sent = [], []

    def make(order):
        real = make_runtime(order)
        return replace(
            real, profile=lambda examples: measured.append(examples) or real.profile(examples)
        )

    def run(*budgets):
        def note(message, reply):
            if message.metadata.message_type == "train":
                head, _ = unpack_content(message.content)
                sent.append((head["client"], head["widths"]))
            return reply

        nodes = [{"client-id": client, **budget} for client, budget in enumerate(budgets)]
        local = LocalGrid(client_app(make), nodes, note)
        order = RunSpec(
            str(tmp_path / "mine.py"), ("tiers=1:1", "num_rounds=2", "cohort_size=4", "workers=1")
        )
        run_once = lambda name: serve_run(local, order, ReplyPolicy(30.0), tmp_path / name)  # noqa: E731
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
    assert "node 100: nothing fits: memory=1kB: the smallest width 1/2 needs" in dropped["0"]
    assert "node 101: deadline=soon is not a number with a unit" in dropped["1"]


def test_a_fleet_passes_its_budget_on():
    pytest.importorskip("flwr")
    from fjord.cli.fleet import node_configs

    (config,) = node_configs(1, bind=True, budget=Budget.split_limits("deadline=60s examples=500"))
    assert config == 'partition-id=0 num-partitions=1 client-id=0 deadline="60s" examples="500"'
    with pytest.raises(ValueError, match="deadline=soon is not a number"):
        Budget.split_limits("deadline=soon")
    with pytest.raises(ValueError, match="budget=60s is not of the form limit=value"):
        Budget.split_limits("60s")
