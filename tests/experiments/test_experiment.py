"""An experiment as a value: what it takes, and how its parts are made."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from own_recipe import write_own_recipe
from torch import nn

import fjord
from fjord.data.writers import writers
from fjord.experiments.recipes.demo import demo
from fjord.experiments.recipes.find import apply_settings, find_recipe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return write_own_recipe(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["load", "tiers"])
def test_a_file_that_is_not_there_is_said_before_data_is_made(name):
    made = fjord.Experiment(
        name="x", model=nn.Identity, data=lambda seed: pytest.fail("made"), **{name: "none.csv"}
    )
    with pytest.raises(ValueError, match=f"{name}=none.csv names a file that does not exist"):
        next(made.federations())


def test_data_is_made_with_one_thread_and_the_others_come_back():
    seen = []

    def data(seed):
        seen.append(torch.get_num_threads())
        return writers(seed, 5, examples=4, held_out=2)

    torch.set_num_threads(2)
    try:
        replace(demo(), data=data).federation(0)
        seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 2]


def test_settings_take_the_type_of_their_field(folder):
    texts = [
        "num_rounds=7",
        "lr=1e-2",
        "availability=1/3",
        "nova=true",
        "milestones=0.25,1/2",
        "freeze=0,2.bias",
    ]
    made = apply_settings(
        find_recipe("mine.py")(), [*texts, "max_local_steps=4", "widths=1/3,1", "server_lr=none"]
    )
    assert (made.num_rounds, made.lr, made.availability, made.nova) == (
        7,
        0.01,
        Fraction(1, 3),
        True,
    )
    assert made.milestones == (Fraction(1, 4), Fraction(1, 2))
    assert (made.freeze, made.max_local_steps, made.server_lr) == (("0", "2.bias"), 4, None)
    assert made.widths == fjord.WidthSpace.of(["1/3", "1"])
