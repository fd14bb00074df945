"""Opens what was trained: a run folder, or a saved file with its model or its recipe."""

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

NEEDS_MODEL = "--model module:function (or resnet18, cnn, rnn)"
NEEDS_RECIPE = "--data RECIPE"
"""The option that a command names where the model's code is unknown."""
AnyExperiment = Experiment | CentralExperiment


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
    """One file for all widths (under None), or one for each width that was trained alone."""
    find_source: Callable[[], ModelSource]
    """Opens the model and the data that the weights belong to."""
    loaded: dict[Path, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> ModelSource:
        """The model and the data, opened at the first use: it may take long to make data."""
        return self.find_source()

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths that were trained, in rising order."""
        if None in self.files:
            return read_model_info(self.files[None]).space.widths
        return tuple(sorted(width for width in self.files if width is not None))

    def file_of(self, width: Width | None) -> Path:
        """Return the file of a width, or that of all widths."""
        file = self.files.get(width) or self.files.get(None)
        if file is None:
            wanted = f"width {width}"
            if width is None:
                wanted = "the whole elastic model is needed"
            widths = ", ".join(map(str, self.widths))
            raise UserError(
                f"{self.path}: {wanted}, but the run trained a model for each of {widths} "
                "and no other"
            )
        return file

    def read_info(self, width: Width | None) -> ModelInfo:
        """Return the description in the file of a width."""
        return read_model_info(self.file_of(width))

    def load_width(self, width: Width | None) -> Any:
        """Return the contents of the file of a width: an elastic model, or one submodel."""
        path = self.file_of(width)
        if path not in self.loaded:
            entry = self.source.entry
            self.loaded[path] = load_model(path, entry.model, entry.inputs)
        return self.loaded[path]

    def load_elastic(self) -> ElasticModel:
        """Return the elastic model of all widths."""
        model = self.load_width(None)
        if not isinstance(model, ElasticModel):
            raise UserError(
                f"{self.path}: holds one submodel alone; give the file of the whole elastic model"
            )
        return model

    def source_facts(self, width: Width | None) -> dict[str, str]:
        """Return what a file made of a width records about its source."""
        path = self.file_of(width)
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
    """Open a run folder or a file.

    A recipe, or a model with a shape, gives the code of a model that the path does not name. With
    a model or a shape no data is opened. `missing` is the option to ask for where the model's code
    is unknown.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such run folder or file")
    files = _find_files(path)
    if model is not None:
        return TrainedModel(path, files, lambda: ModelSource(find_model(model, shape)))
    experiment = _find_experiment(path, recipe, missing)
    return TrainedModel(path, files, lambda: _open_source(path, experiment, shape))


def _open_source(path: Path, experiment: AnyExperiment, shape: str | None) -> ModelSource:
    with torch.random.fork_rng(devices=[]):
        net = experiment.model()
    if shape is not None:
        entry = CatalogEntry(net, (example_inputs(shape),), experiment.freeze)
        return ModelSource(entry)
    data = _load_data(path, experiment)
    inputs, _ = data.test.batch(0, 2)
    entry = CatalogEntry(net, (inputs,), experiment.freeze)
    return ModelSource(entry, data, experiment.metric)


def _find_files(path: Path) -> dict[Width | None, Path]:
    """Return the files of weights, by width; a file of all widths is under None."""
    if not path.is_dir():
        read_model_info(path)  # raises an error if the file is not complete
        return {None: path}
    whole = path / "model.safetensors"
    if whole.is_file():
        return {None: whole}
    files = sorted(path.glob("model-*.safetensors"))
    if not files:
        raise UserError(f"{path}: has no model.safetensors; a run that is not over has none yet")
    if len(files) == 1:  # centralised training names the file of all widths after the widest
        return {None: files[0]}
    by_width: dict[Width | None, Path] = {}
    for file in files:
        text = file.stem.removeprefix("model-").replace("of", "/")
        by_width[parse_width(text)] = file
    return by_width


def _find_experiment(path: Path, recipe: str | None, missing: str) -> AnyExperiment:
    """Return the recipe with its settings: the one given, or that of a run folder."""
    if recipe is not None:
        return _make_experiment(recipe)
    if not path.is_dir():
        model = read_model_info(path).model
        raise UserError(f"{path}: holds the weights of a {model} but not its code: give {missing}")
    known = RunFolder(path).config.get("recipe") or {}
    if "name" not in known:
        raise UserError(
            f"{path}: was started from Python, so the model's code is unknown: give {missing}"
        )
    return apply_settings(_make_experiment(known["name"]), known["set"])


def _make_experiment(name: str) -> AnyExperiment:
    if name in central.RECIPES:
        return central.RECIPES[name]()
    return find_recipe(name)()


def _load_data(path: Path, experiment: AnyExperiment) -> FederatedData:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(experiment.seed, "data"))
            return experiment.data(experiment.seed)
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path}: the data of its recipe cannot be opened ({error}); export and latency only "
            "need the shape of an input, which --input can give"
        ) from error
