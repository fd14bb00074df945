"""What is there of a run already: nothing, a part, or all of it; a folder with other settings is refused by name."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from fjord.experiments.settings import default_settings
from fjord.report.groups import FREE, ReportRun
from reproduction import theorem1
from reproduction.curves import RunJob


def run_state(job: RunJob, runs: Path) -> str:
    """Say whether a run is missing, unfinished or finished."""
    folder = RunFolder(runs / job.name)
    if not (folder.path / "config.json").exists():
        return "missing"
    _demand_settings(job, folder)
    if job.recipe in theorem1.RECIPES:
        rows = folder.metrics()
        return "finished" if rows and rows[-1]["step"] == folder.config["steps"] else "unfinished"
    return "finished" if ReportRun.read(folder).finished else "unfinished"


def count_rows(job: RunJob, runs: Path) -> tuple[int, int | None]:
    """Return how many rows of metrics a run has, and how many it will have if that is known."""
    folder = RunFolder(runs / job.name)
    if not (folder.path / "config.json").exists():
        return 0, None
    config, file = folder.config, folder.path / "metrics.jsonl"
    if job.recipe in theorem1.RECIPES:
        total = config["steps"] // config["log_every"] + 1
    else:
        total = config["num_rounds"] * len(config.get("targets", [1]))
    return file.read_bytes().count(b"\n") if file.exists() else 0, total


def expected_config(job: RunJob) -> dict[str, Any]:
    """Return the configuration that a run of this job has."""
    if job.recipe in theorem1.RECIPES:
        return asdict(replace(theorem1.RECIPES[job.recipe](), seed=job.seed))
    if job.recipe in central.RECIPES:
        return apply_settings(central.RECIPES[job.recipe](), job.all_settings).config()
    return apply_settings(find_recipe(job.recipe)(), job.all_settings).config()


def _demand_settings(job: RunJob, folder: RunFolder) -> None:
    """Refuse another experiment; a setting that is younger than the run had its default value then."""
    old, new = folder.config, expected_config(job)
    young = default_settings(Experiment)
    for key in sorted(new.keys() - (FREE - {"seed"})):
        if not _same(old.get(key, young.get(key)), new[key]):
            was = f"{folder.path}: was run with {key}={old.get(key)}"
            raise UserError(f"{was}, here it is {new[key]}; name another folder by --runs")


def _same(old: Any, new: Any) -> bool:
    """Compare settings; an option of the data that is younger than the run does not count."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return all(new.get(key) == value for key, value in old.items())
    return bool(old == new)
