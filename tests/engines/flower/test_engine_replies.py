"""Replies over Flower that are wrong, late or missing: they are named and leave no trace."""

import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")
from flower_runs import assert_same, in_process, over_grid, recipe_file  # noqa: F401
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from local_grid import LocalGrid

from fjord.engines.flower.client import client_app
from fjord.engines.flower.codec import pack_content, unpack_content
from fjord.engines.flower.engine import ReplyPolicy
from fjord.engines.flower.run_spec import RunSpec
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.flower_app import make_runtime, serve_run
from fjord.experiments.recipes.find import find_recipe
from fjord.training.assignment import Rejected


def rewritten(content: RecordDict, data=None, **changes) -> RecordDict:
    head, blocks = unpack_content(content)
    return pack_content(
        {**head, **changes}, {"slice": blocks["slice"] if data is None else data(blocks["slice"])}
    )


def with_head(content: RecordDict, head: str) -> RecordDict:
    return RecordDict({"fjord": ConfigRecord({**content["fjord"], "head": head})})


def as_arrays(content: RecordDict, arrays: ArrayRecord) -> RecordDict:
    """Send the slice in the way of large ones."""
    return RecordDict({"fjord": ConfigRecord({"head": content["fjord"]["head"]}), "large": arrays})


def without_field(content: RecordDict, name: str) -> RecordDict:
    head, blocks = unpack_content(content)
    return pack_content({key: value for key, value in head.items() if key != name}, blocks)


WRONG = {
    "truncated": (lambda c: rewritten(c, lambda data: data[:-1]), "bytes, not"),
    "too long": (lambda c: rewritten(c, lambda data: data + b"1234"), "bytes, not"),
    "one-wide": (lambda c: rewritten(c, lambda data: data[: 4 * 27]), "bytes, not"),
    "NaN": (lambda c: rewritten(c, lambda data: data[:-4] + b"\x00\x00\xc0\x7f"), "not finite"),
    "another dtype": (
        lambda c: as_arrays(c, ArrayRecord({"slice": Array(torch.zeros(4).numpy())})),
        "not uint8",
    ),
    "other keys": (lambda c: as_arrays(c, ArrayRecord([torch.zeros(1).numpy()])), "not uint8"),
    "no slice": (lambda c: pack_content(unpack_content(c)[0], {}), "it has no 'slice'"),
    "no head": (lambda c: RecordDict({"fjord": ConfigRecord()}), "it has no 'head'"),
    "empty": (lambda c: RecordDict(), "it has no 'fjord'"),
    "no JSON": (lambda c: with_head(c, "{"), "Expecting"),
    "a list": (lambda c: with_head(c, "[1]"), "not a JSON object"),
    "deep": (lambda c: with_head(c, "[" * 100_000), "recursion"),
    "no loss": (lambda c: without_field(c, "loss"), "it has no 'loss'"),
    "another client": (lambda c: rewritten(c, client=5), "the update of client 5"),
    "a list for a client": (lambda c: rewritten(c, client=[1]), "the update of client [1]"),
    "another round": (lambda c: rewritten(c, round=9), "answers round 9"),
    "no examples": (lambda c: rewritten(c, examples=0), "num_examples is 0"),
    "examples as text": (lambda c: rewritten(c, examples="many"), "num_examples is 'many'"),
    "examples as nothing": (lambda c: rewritten(c, examples=None), "num_examples is None"),
    "loss NaN": (lambda c: rewritten(c, loss=float("nan")), "loss is nan"),
    "loss as a list": (lambda c: rewritten(c, loss=[1.0]), "loss is [1.0]"),
    "macs as an object": (lambda c: rewritten(c, macs={}), "macs is {}"),
    "steps of other widths": (lambda c: rewritten(c, steps=[1] * 9), "counts for"),
    "steps as a number": (lambda c: rewritten(c, steps=3), "for a list of counts"),
    "steps of text": (
        lambda c: rewritten(c, steps=["1"] * len(unpack_content(c)[0]["steps"])),
        "steps is not a number",
    ),
    "negative steps": (
        lambda c: rewritten(c, reach=[-1] * len(unpack_content(c)[0]["reach"])),
        "widest_steps is not a number",
    ),
}


def in_first_round(client: int, spoil):
    """Spoil what one client answers in the first round."""

    def on_reply(message, reply):
        if message.metadata.message_type != "train":
            return reply
        head, _ = unpack_content(message.content)
        return spoil(message, reply) if (head["client"], head["round"]) == (client, 0) else reply

    return on_reply


class Without(InProcessEngine):
    """The in-process engine, without one client in the first round."""

    def train(self, tasks):
        for task, reply in super().train(tasks):
            is_left_out = (task.client_id, task.round_index) == (1, 0)
            yield task, Rejected("left out") if is_left_out else reply


@pytest.fixture(scope="module")
def without(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("without") / "run"
    return in_process(recipe, folder, engine=lambda federation, stage: Without(federation))


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_reply_is_named_and_leaves_no_trace(recipe, tmp_path, without, fault):
    change, words = WRONG[fault]
    spoil = in_first_round(
        1, lambda message, reply: Message(change(reply.content), reply_to=message)
    )
    found = over_grid(recipe, tmp_path / "run", spoil=spoil)
    assert words in found.metrics()[0]["dropped"]["1"]
    assert found.metrics()[0]["engine"] == {
        "deadline": 20.0,
        "sent": 5,
        "answered": 5,
        "late": 0,
        "failed": 0,
    }
    assert_same(found, without)


def test_a_client_that_raises_and_one_that_never_answers_are_named(recipe, tmp_path, without):
    failed = in_first_round(
        1, lambda message, reply: Message(Error(2, "a\nValueError: no data"), reply_to=message)
    )
    found = over_grid(recipe, tmp_path / "failed", spoil=failed)
    assert found.metrics()[0]["dropped"] == {"1": "its node failed: ValueError: no data (code 2)"}
    assert found.metrics()[0]["engine"]["failed"] == 1
    assert_same(found, without)
    silent = in_first_round(1, lambda message, reply: None)
    found = over_grid(recipe, tmp_path / "silent", spoil=silent, patience=ReplyPolicy(0.8))
    assert found.metrics()[0]["dropped"] == {"1": "no reply within 0.8 s"}
    assert found.metrics()[0]["engine"]["late"] == 1
    assert_same(found, without)


def test_a_reply_after_the_deadline_changes_nothing(recipe, tmp_path, without):
    late = []

    def spoil(message, reply):
        late.append(message.metadata.message_id)
        arrive = lambda: grid.replies.__setitem__(message.metadata.message_id, reply)  # noqa: E731
        threading.Timer(0.9, arrive).start()

    grid = LocalGrid(client_app(make_runtime), [{}], in_first_round(1, spoil))
    found = serve_run(grid, RunSpec(recipe), ReplyPolicy(0.8), tmp_path / "run")
    assert found.metrics()[0]["dropped"] == {"1": "no reply within 0.8 s"}
    assert_same(found, without)
    assert len(late) == 1


def test_a_message_expires_before_the_deadline(recipe, tmp_path):
    lives = []
    spoil = lambda message, reply: lives.append(message.metadata.ttl) or reply  # noqa: E731
    over_grid(recipe, tmp_path / "run", ["num_rounds=1"], spoil=spoil, patience=ReplyPolicy(40.0))
    assert all(30 < life < 38 for life in lives[3:])  # the first three are queries


def test_too_few_good_replies_leave_the_model_as_it_was(recipe, tmp_path):
    spoil = in_first_round(
        1, lambda message, reply: Message(WRONG["NaN"][0](reply.content), reply_to=message)
    )
    found = over_grid(
        recipe,
        tmp_path / "run",
        ["num_rounds=1"],
        spoil=spoil,
        patience=ReplyPolicy(20.0, min_replies=5),
    )
    row = found.metrics()[0]
    assert row["examples"] == 0
    assert sorted(set(row["dropped"].values())) == [
        "left out: 4 of the 5 replies that a round needs were good"
    ]
    start = next(find_recipe(recipe)().federations()).model.state_dict()
    end = load_file(found.path / "model.safetensors")
    assert all(torch.equal(end[key], start[key]) for key in start)
    enough = over_grid(
        recipe, tmp_path / "enough", spoil=spoil, patience=ReplyPolicy(20.0, min_replies=4)
    )
    assert len(enough.metrics()[0]["dropped"]) == 1


@pytest.mark.parametrize("value", [{"deadline": 0}, {"deadline": float("nan")}, {"min_replies": 0}])
def test_patience_is_checked_at_the_door(value):
    with pytest.raises(ValueError, match=f"{next(iter(value))}="):
        replace(ReplyPolicy(), **value)
