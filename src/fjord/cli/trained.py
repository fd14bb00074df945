"""Opens what was trained: a run folder, or a saved file with the model or the recipe that it belongs to."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Width, parse_width
from fjord.data.federated import FederatedData
from fjord.elastic.description import ModelInfo
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import load_model, read_model_info
from fjord.experiments.central import CentralExperiment
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from fjord.models.catalog import CatalogEntry, example_inputs, find_model

MODEL = "--model module:function (or resnet18, cnn, rnn)"
RECIPE = "--data RECIPE"


@dataclass(frozen=True)
class ModelSource:
    """The model that weights belong to, and the data of its recipe where that is opened."""

    entry: CatalogEntry
    data: FederatedData | None = None
    metric: str = "accuracy"


@dataclass(frozen=True)
class TrainedModel:
    """Trained weights, by file."""

    path: Path
    files: dict[Width | None, Path]
    """One file for all widths (under None), or one for each width that was trained on its own."""
    find: Callable[[], ModelSource]
    """Opens what the weights belong to."""
    opened: dict[Path, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> ModelSource:
        """The model and the data; found when first asked for, as it may take long to make data."""
        return self.find()

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths that were trained, in rising order."""
        if None in self.files:
            return read_model_info(self.files[None]).space.widths
        return tuple(sorted(width for width in self.files if width is not None))

    def file(self, width: Width | None) -> Path:
        """Return the file that holds a width, or all of them."""
        found = self.files.get(width) or self.files.get(None)
        if found is None:
            widths = ", ".join(map(str, self.widths))
            wanted = "the whole elastic model is needed" if width is None else f"width {width}"
            raise UserError(
                f"{self.path}: {wanted}, but the run trained a model for each of {widths} and no other"
            )
        return found

    def info(self, width: Width | None) -> ModelInfo:
        """Return what the file of a width says of itself."""
        return read_model_info(self.file(width))

    def load(self, width: Width | None) -> Any:
        """Return what the file of a width holds: an elastic model, or one submodel."""
        path = self.file(width)
        if path not in self.opened:
            self.opened[path] = load_model(path, self.source.entry.model, self.source.entry.inputs)
        return self.opened[path]

    def elastic(self) -> ElasticModel:
        """Return the elastic model of all widths."""
        model = self.load(None)
        if not isinstance(model, ElasticModel):
            raise UserError(
                f"{self.path}: holds one submodel alone; give the file of the whole elastic model"
            )
        return model

    def facts(self, width: Width | None) -> dict[str, str]:
        """Return what a file made of a width says of its source."""
        path = self.file(width)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"model": read_model_info(path).model, "source": path.name, "source_sha256": digest}


def open_trained(
    path: Path,
    missing: str,
    *,
    recipe: str | None = None,
    model: str | None = None,
    shape: str | None = None,
) -> TrainedModel:
    """Open a run folder or a file; a recipe or a model with a shape says what neither of them knows.

    With a model or a shape no data is opened. `missing` is the option to ask for where the model's code is unknown.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such run folder or file")
    files = _files(path)
    if model is not None:
        return TrainedModel(path, files, lambda: ModelSource(find_model(model, shape)))
    setting = _setting(path, recipe, missing)
    return TrainedModel(path, files, lambda: _source(path, setting, shape))


def _source(path: Path, setting: Experiment | CentralExperiment, shape: str | None) -> ModelSource:
    with torch.random.fork_rng(devices=[]):
        net = setting.model()
    if shape is not None:
        return ModelSource(CatalogEntry(net, (example_inputs(shape),), setting.freeze))
    data = _data(path, setting)
    return ModelSource(
        CatalogEntry(net, (data.test.batch(0, 2)[0],), setting.freeze), data, setting.metric
    )


def _files(path: Path) -> dict[Width | None, Path]:
    if not path.is_dir():
        read_model_info(path)  # refuses what is not whole
        return {None: path}
    whole = path / "model.safetensors"
    found = [whole] if whole.is_file() else sorted(path.glob("model-*.safetensors"))
    if not found:
        raise UserError(f"{path}: has no model.safetensors; a run that is not over has none yet")
    if len(found) == 1:  # training on one place names the file of all widths by the widest
        return {None: found[0]}
    return {parse_width(p.stem.removeprefix("model-").replace("of", "/")): p for p in found}


def _setting(path: Path, recipe: str | None, missing: str) -> Experiment | CentralExperiment:
    """Return the recipe with its settings: the one given, or that of a run folder."""
    if recipe is not None:
        return _recipe(recipe)
    if not path.is_dir():
        raise UserError(
            f"{path}: holds the weights of a {read_model_info(path).model} but not its code: give {missing}"
        )
    known = RunFolder(path).config.get("recipe") or {}
    if "name" not in known:
        raise UserError(
            f"{path}: was started from Python, so the model's code is unknown: give {missing}"
        )
    return apply_settings(_recipe(known["name"]), known["set"])


def _recipe(name: str) -> Experiment | CentralExperiment:
    return central.RECIPES[name]() if name in central.RECIPES else find_recipe(name)()


def _data(path: Path, setting: Experiment | CentralExperiment) -> FederatedData:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(setting.seed, "data"))
            return setting.data(setting.seed)
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path}: the data of its recipe cannot be opened ({error}); export and latency only need the shape "
            "of an input, which --input can give"
        ) from error
