"""Settings: one declaration is all that text, messages, configuration and resume need."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

import pytest
from torch import nn

from fjord.core.errors import SettingError
from fjord.core.width import uniform_widths
from fjord.experiments.central import CentralExperiment
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes.demo import demo
from fjord.experiments.settings import (
    declared_settings,
    default_settings,
    free_settings,
    set_setting,
    setting,
    settings_as_json,
)
from fjord.experiments.value_kinds import COUNT

NOT_TYPED = {"name", "model", "data", "devices"}


@pytest.mark.parametrize("kind", [Experiment, CentralExperiment])
def test_every_field_is_declared_with_a_kind_and_a_help_text(kind):
    declared = declared_settings(kind)
    assert list(declared) == [one.name for one in fields(kind)]
    for name, info in declared.items():
        assert info.help.endswith("."), name
        assert (info.kind is None) == (name in NOT_TYPED), name


@pytest.mark.parametrize("kind", [Experiment, CentralExperiment])
def test_every_default_is_allowed_and_in_its_exact_form(kind):
    made = kind(name="x", model=nn.Identity, data=lambda seed: None)
    for one in fields(kind):
        if one.name in default_settings(kind):
            assert getattr(made, one.name) == one.default


def test_a_function_is_written_under_the_name_that_older_runs_have():
    assert demo().config()["data"]["function"] == "writers"


def test_what_does_not_affect_results():
    assert free_settings(Experiment) == {"workers", "checkpoint_seconds", "log"}
    assert free_settings(CentralExperiment) == set()


@dataclass(frozen=True, kw_only=True)
class Extended(Experiment):
    patience: int = setting(3, COUNT, "Rounds without progress.", affects_results=False)


def test_a_new_setting_is_one_declaration():
    base = Extended(name="x", model=nn.Identity, data=lambda seed: None)
    assert settings_as_json(base)["patience"] == default_settings(Extended)["patience"] == 3
    assert set_setting(base, "patience", "5").patience == 5
    assert "patience" in free_settings(Extended)
    with pytest.raises(SettingError, match=r"patience=0 must be a whole number of at least 1"):
        replace(base, patience=0)
    with pytest.raises(SettingError, match=r"patienc=1 is not a setting \(did you mean patience"):
        set_setting(base, "patienc", "1")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("num_rounds", "7", 7),
        ("lr", "1e-2", 0.01),
        ("busy", "1/3", Fraction(1, 3)),
        ("nova", "True", True),
        ("milestones", "0.25,1/2", (Fraction(1, 4), Fraction(1, 2))),
        ("milestones", "", ()),
        ("freeze", "a,b", ("a", "b")),
        ("max_local_steps", "none", None),
        ("server_lr", "none", None),
        ("load", "none", None),
        ("widths", "uniform-2", uniform_widths(2)),
        ("log", "tensorboard", ("tensorboard",)),
        ("tiers", "fleet.json", str(Path("fleet.json").resolve())),
        ("tiers", "uniform-3", "uniform-3"),
        ("load", "load.csv", str(Path("load.csv").resolve())),
        ("clock", "speeds.csv", str(Path("speeds.csv").resolve())),
    ],
)
def test_text_is_read_by_the_declared_kind(key, text, value):
    assert getattr(set_setting(demo(), key, text), key) == value


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("num_rounds", "1.5", "num_rounds=1.5 must be a whole number of at least 1"),
        ("lr", "inf", "lr=inf must be a number above 0"),
        ("busy", "1/0", "busy=1/0 must be a number of at least 0 and at most 1"),
        ("milestones", "1/2,2", "milestones=1/2,2 must be shares of the training"),
        ("momentum", "1", "momentum=1.0 must be a number of at least 0 and below 1"),
        ("norms", "layer", r"norms=layer must be .* \(did you mean layers"),
        ("load", "x.txt", "load=x.txt must be a .csv or .json file of lower ceilings, or none"),
        ("data.num_client", "3", r"data.num_client=3 is not .* \(did you mean num_clients"),
        ("data.num_clients", "few", "data.num_clients=few must be a whole number"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(key, text, says):
    with pytest.raises(SettingError, match=says) as caught:
        set_setting(demo(), key, text)
    assert caught.value.field == key
    assert "--" not in str(caught.value)
