"""Opens what was trained: a run folder, or a file with the recipe that made it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fjord.data.federated import FederatedData
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import load
from fjord.experiment import Experiment
from fjord.recipes.find import apply_settings, find_recipe
from fjord.runs import RunFolder
from fjord.seeding import derive


@dataclass(frozen=True)
class Trained:
    """A trained elastic model, its file, and the data of its recipe."""

    model: ElasticModel
    file: Path
    data: FederatedData
    metric: str


def open_trained(path: Path, recipe: str | None) -> Trained:
    """Open a run folder, or a saved file of a recipe's model."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such run folder or file")
    experiment = _experiment(path, recipe)
    file = _file(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(experiment.seed, "data"))
        data = experiment.data(experiment.seed)
        net = experiment.model()
    model = load(file, net, data.test.batch(0, 2)[0])
    if not isinstance(model, ElasticModel):
        raise ValueError(f"{file}: holds one submodel alone; give the file of the whole elastic model")
    return Trained(model, file, data, experiment.metric)


def _experiment(path: Path, recipe: str | None) -> Experiment:
    if recipe is not None:
        return find_recipe(recipe)()
    known = RunFolder(path).config.get("recipe") or {} if path.is_dir() else {}
    if "name" not in known:
        raise ValueError(f"{path}: does not say which model and data it belongs to: give --data RECIPE")
    return apply_settings(find_recipe(known["name"])(), known["set"])


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    file = path / "model.safetensors"
    if not file.is_file():
        many = any(path.glob("model-*.safetensors"))
        why = "its method trains a model for each width" if many else "a run that is not over has none yet"
        raise ValueError(f"{path}: there is no model.safetensors; {why}")
    return file
