"""A folder with other settings is refused."""

import pytest
from paper_tasks import add_toy_task

from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from reproduction import scales
from reproduction.curves import CURVES, RunJob, run_job
from reproduction.folders import run_state


@pytest.fixture
def toy(tmp_path, monkeypatch):
    return add_toy_task(tmp_path, monkeypatch)


def test_a_folder_with_other_settings_is_refused_by_name(toy, tmp_path):
    one = run_job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    config = apply_settings(find_recipe(one.recipe)(), one.all_settings).config()
    RunFolder.create(tmp_path / one.name, {**config, "lr": 0.3})
    with pytest.raises(
        ValueError, match=r"toy/fjord/0: was run with lr=0.3, here it is 0.1; choose another folder"
    ):
        run_state(one, tmp_path)


def test_a_setting_that_is_younger_than_a_run_had_its_default(toy, tmp_path):
    one = run_job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    config = apply_settings(find_recipe(one.recipe)(), one.all_settings).config()
    del config["prox"], config["data"]
    RunFolder.create(tmp_path / one.name, {**config, "data": "data"})
    assert run_state(one, tmp_path) == "unfinished"
    with pytest.raises(ValueError, match=r"prox=0\.0, here it is 0\.5"):
        run_state(RunJob(one.place, one.recipe, (*one.settings, "prox=0.5"), 0), tmp_path)
