"""Which node of Flower gets which client, and no more than it can carry."""

import pytest

pytest.importorskip("flwr")

from flower_runs import over_grid, recipe_file  # noqa: F401

from fjord.engines.flower.codec import unpack_content
from fjord.engines.flower.engine import ReplyPolicy
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.training.assignment import total_bytes


def test_a_node_that_is_one_client_gets_that_client_only_and_no_more_than_it_can_carry(
    recipe, tmp_path
):
    nodes = [
        {"client-id": 0, "ceiling": "2/5"},
        {"client-id": 4},
        {"client-id": 1, "ceiling": "1/10"},
    ]
    sent = []

    def spoil(message, reply):
        if message.metadata.message_type == "train":
            task, _ = unpack_content(message.content)
            sent.append((message.metadata.dst_node_id, task["client"], task["widths"]))
        return reply

    found = over_grid(
        recipe, tmp_path / "run", ["cohort_size=6", "tiers=1:1"], nodes=nodes, spoil=spoil
    )
    assert {(node, client) for node, client, _ in sent} == {(100, 0), (101, 4)}
    assert {widths for _, client, widths in sent if client == 0} == {"1/5:1/2,2/5:1/2"}
    dropped = found.metrics()[0]["dropped"]
    assert dropped["1"] == "the ceiling of its node, 1/10, is below the smallest width 1/5"
    assert dropped["2"] == "no usable node is connected for it"


@pytest.mark.parametrize("method", ["fjord", "fjord-efd", "fedrolex", "fedavg"])
def test_a_node_that_is_nobody_is_sent_no_more_than_it_can_carry(recipe, tmp_path, method):
    """Held against the bytes of the plain submodels that the two nodes name."""
    widest, sent = {100: "2/5", 101: "4/5"}, {100: [], 101: []}
    model = next(apply_settings(find_recipe(recipe)(), ["norms=shared"]).federations()).model
    allowed = {node: total_bytes(model.cut(width).state_dict()) for node, width in widest.items()}

    def spoil(message, reply):
        if message.metadata.message_type == "train":
            sent[message.metadata.dst_node_id].append(
                len(unpack_content(message.content)[1]["slice"])
            )
        return reply

    settings = [f"method={method}", "norms=shared", "cohort_size=6"]
    nodes = [{"ceiling": width} for width in widest.values()]
    found = over_grid(recipe, tmp_path / "run", settings, nodes=nodes, spoil=spoil).metrics()
    assert all(part <= allowed[node] for node, parts in sent.items() for part in parts)
    reasons = {why for row in found for why in row["dropped"].values()}
    assert reasons == {"the ceiling of any node is at most 4/5, and it would have to carry 1"}
    assert any(sent.values()) == (method != "fedavg")


def test_nodes_that_are_nobody_share_the_clients(recipe, tmp_path):
    sent = []
    spoil = lambda message, reply: sent.append(message.metadata.dst_node_id) or reply  # noqa: E731
    over_grid(
        recipe,
        tmp_path / "run",
        ["num_rounds=1", "cohort_size=6"],
        nodes=[{}, {"client-id": 5}, {}],
        spoil=spoil,
    )
    trained = sent[3:]
    assert trained.count(101) == 1
    assert {trained.count(100), trained.count(102)} == {2, 3}


def test_a_node_that_did_not_answer_is_spared_in_the_next_round(recipe, tmp_path):
    sent = []

    def spoil(message, reply):
        if message.metadata.message_type != "train":
            return reply
        sent.append((unpack_content(message.content)[0]["round"], message.metadata.dst_node_id))
        return None if message.metadata.dst_node_id == 101 else reply

    over_grid(recipe, tmp_path / "run", ["num_rounds=3"], spoil=spoil, patience=ReplyPolicy(0.5))
    assert {number: {node for at, node in sent if at == number} for number in range(3)} == {
        0: {100, 101, 102},
        1: {100, 102},
        2: {100, 101, 102},
    }


def test_a_node_that_makes_no_sense_is_not_used_and_named(recipe, tmp_path):
    found = over_grid(
        recipe, tmp_path / "run", nodes=[{"ceiling": "wide"}], patience=ReplyPolicy(1.0)
    )
    assert "node 100: ceiling: width 'wide' is not a fraction" in found.metrics()[0]["dropped"]["1"]


def test_no_node_at_all_is_said(recipe, tmp_path):
    found = over_grid(recipe, tmp_path / "run", nodes=[], patience=ReplyPolicy(0.2))
    assert set(found.metrics()[1]["dropped"].values()) == {"no usable node is connected for it"}
