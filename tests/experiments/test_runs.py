"""Run folders: files that are written whole, and whether two runs are the same experiment."""

import json

import pytest

from fjord.experiments.central import CentralExperiment
from fjord.experiments.recipes import central
from fjord.experiments.recipes.demo import demo
from fjord.experiments.runs import (
    FREE_SETTINGS,
    RunFolder,
    changed_settings,
    check_same_experiment,
    result_settings,
)


def test_only_what_affects_results_makes_another_experiment():
    config = demo().config()
    for name in config:
        changed = changed_settings(config, {**config, name: "another"})
        if name in FREE_SETTINGS:
            assert changed == []
        else:
            assert [change.name for change in changed] == [name]
    assert FREE_SETTINGS == {"recipe", "workers", "checkpoint_seconds", "log"}
    assert "seed" in result_settings(config)


@pytest.mark.parametrize(
    ("config", "kind", "young"),
    [
        (demo().config(), type(demo()), "average"),
        (central.femnist().config(), CentralExperiment, "draws"),
    ],
)
def test_a_setting_younger_than_a_run_had_its_default(config, kind, young):
    old = {name: value for name, value in config.items() if name != young}
    assert changed_settings(old, config, kind) == []
    (change,) = changed_settings(old, {**config, young: "another"}, kind)
    assert (change.name, change.old, change.new) == (young, config[young], "another")


def test_a_setting_that_is_gone_is_a_change(tmp_path):
    config = demo().config()
    folder = RunFolder.create(tmp_path / "run", {**config, "removed": 1})
    with pytest.raises(ValueError, match="was begun with removed=1, the recipe now says None"):
        check_same_experiment(folder, config)


def test_a_configuration_is_read_as_it_was_written(tmp_path):
    folder = RunFolder.create(tmp_path / "run", demo().config())
    assert folder.config == json.loads(json.dumps(demo().config()))
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.json",
        "env.json",
        "metrics.jsonl",
    ]


def test_drafts_of_a_killed_process_are_removed(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {})
    (folder.path / ".metrics.jsonl.123.tmp").touch()
    folder.remove_drafts()
    assert not list(folder.path.glob(".*"))


def test_a_path_that_holds_a_run_gets_a_number(tmp_path):
    assert RunFolder.next_free_path(tmp_path / "0") == tmp_path / "0"
    RunFolder.create(tmp_path / "0", {})
    RunFolder.create(tmp_path / "0-2", {})
    assert RunFolder.next_free_path(tmp_path / "0") == tmp_path / "0-3"
