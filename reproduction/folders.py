"""The state of a run's folder: missing, unfinished or finished; other settings are refused."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.experiments.central import CentralExperiment
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder, SettingChange, changed_settings
from fjord.report.groups import ReportRun
from reproduction import theorem1
from reproduction.curves import RunJob

STATES = ("finished", "unfinished", "missing")


def run_state(job: RunJob, runs: Path) -> str:
    """Say whether a run is missing, unfinished or finished."""
    folder = RunFolder(runs / job.name)
    if not folder.has("config.json"):
        return "missing"
    _check_settings(job, folder)
    if job.recipe in theorem1.RECIPES:
        finished = theorem1.is_finished(folder)
    else:
        finished = ReportRun.read(folder).finished
    return "finished" if finished else "unfinished"


def count_rows(job: RunJob, runs: Path) -> tuple[int, int | None]:
    """Return how many rows of metrics a run has, and how many it will have if that is known."""
    folder = RunFolder(runs / job.name)
    if not folder.has("config.json"):
        return 0, None
    config = folder.config
    if job.recipe in theorem1.RECIPES:
        total = config["steps"] // config["log_every"] + 1
    else:
        total = config["num_rounds"] * len(config.get("targets", [1]))
    metrics = folder.path / "metrics.jsonl"
    if not metrics.exists():
        return 0, total
    return metrics.read_bytes().count(b"\n"), total


def expected_config(job: RunJob) -> dict[str, Any]:
    """Return the configuration that a run of this job has."""
    if job.recipe in theorem1.RECIPES:
        return asdict(replace(theorem1.RECIPES[job.recipe](), seed=job.seed))
    if job.recipe in central.RECIPES:
        return apply_settings(central.RECIPES[job.recipe](), job.all_settings).config()
    return apply_settings(find_recipe(job.recipe)(), job.all_settings).config()


def _check_settings(job: RunJob, folder: RunFolder) -> None:
    """Refuse a folder with another experiment."""
    new = expected_config(job)
    old = {key: value for key, value in folder.config.items() if key in new}
    for change in changed_settings(old, new, _settings_type(job)):
        if not _has_new_options_only(change):
            raise UserError(
                f"{folder.path}: was run with {change.name}={change.old}, here it is {change.new}; "
                "choose another folder of runs"
            )


def _settings_type(job: RunJob) -> type:
    if job.recipe in theorem1.RECIPES:
        return theorem1.Theorem1Setting
    if job.recipe in central.RECIPES:
        return CentralExperiment
    return Experiment


def _has_new_options_only(change: SettingChange) -> bool:
    """Say whether a setting differs only by options of the data that are newer than the run."""
    if not isinstance(change.old, Mapping) or not isinstance(change.new, Mapping):
        return False
    return all(change.new.get(key) == value for key, value in change.old.items())
