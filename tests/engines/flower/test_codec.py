"""Messages of Flower: bytes of the slice only, and what is decoded is what was encoded."""

from functools import cache

import pytest
import torch
from fed_oracles import assignments

pytest.importorskip("flwr")

from flower_runs import assert_same, in_process, over_grid, recipe_file  # noqa: F401

from fjord.core.width import Width, uniform_widths
from fjord.elastic.client_model import slice_index, take_tensors
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.engines.flower import codec
from fjord.engines.flower.codec import (
    content_bytes,
    decode_task,
    encode_task,
    encode_update,
    unpack_content,
)
from fjord.engines.flower.run_spec import RunSpec
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.models.catalog import PAPER_MODELS
from fjord.training.assignment import Assignment, ClientUpdate


@cache
def elastic(name: str) -> ElasticModel:
    entry = PAPER_MODELS[name]()
    return elasticize(entry.model, *entry.inputs, widths=uniform_widths(5), freeze=entry.freeze)


def slice_of(name: str, width: str) -> tuple[Assignment, ClientUpdate, ElasticModel]:
    model, space = elastic(name), uniform_widths(5).up_to(width)
    units = model.plan.leading_units(Width(width))
    tensors = take_tensors(model, slice_index(model, units, space.widths))
    counts = dict.fromkeys(space.widths, 7)
    return (
        Assignment(3, 1, Width(width), 0.1, units, space, tensors),
        ClientUpdate(3, tensors, 9, 0.5, counts, counts, 10**12),
        model,
    )


@pytest.mark.parametrize("width", ["1/5", "2/5", "3/5", "4/5", "1"])
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_a_message_is_the_slice_and_at_most_two_percent_more(name, width):
    task, update, model = slice_of(name, width)
    down = encode_task(
        task, model.plan, RunSpec("shakespeare", ("seed=1", "num_rounds=20")).fields()
    )
    up = encode_update(task, update)
    weights = sum(tensor.numel() for tensor in task.tensors.values())
    for content in (down, up):
        assert content_bytes(content) <= 1.02 * 4 * weights
    if name == "resnet18" and width == "1/5":
        assert 23 < 44.7e6 / content_bytes(down) < 25


def test_what_is_decoded_is_what_was_encoded(recipe):
    federation = next(
        apply_settings(find_recipe(recipe)(), ["method=fedrolex", "scaffold=true"]).federations()
    )
    for task in [*assignments(federation, 0), *assignments(federation, 3)]:
        head, blocks = unpack_content(encode_task(task, federation.model.plan, {}))
        assert ("mask" in head) == (
            task.round_index == 3 and min(map(len, task.units.values())) < 10
        )
        found = decode_task(head, blocks, federation.model, federation.slice_index)
        for name in ("client_id", "round_index", "ceiling", "lr", "space"):
            assert getattr(found, name) == getattr(task, name)
        for name in ("units", "tensors", "correction"):
            mine, theirs = getattr(found, name), getattr(task, name)
            assert list(mine) == list(theirs)
            assert all(mine[key].dtype == theirs[key].dtype for key in theirs)
            assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def test_slices_too_large_to_travel_beside_the_head_arrive_as_well(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "INLINE_BYTES", 100)
    assert_same(
        over_grid(recipe, tmp_path / "grid", ("scaffold=true",)),
        in_process(recipe, tmp_path / "in", ("scaffold=true",)),
    )
