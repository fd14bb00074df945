"""Reads what is to be exported: a run folder, or a file of an elastic model or of one submodel."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import load, read_info
from fjord.experiment import Experiment
from fjord.models.catalog import Entry, example, find_model
from fjord.recipes.find import apply_settings, find_recipe
from fjord.runs import RunFolder
from fjord.seeding import derive
from fjord.width import Width, parse_width

MODEL = "--model module:function (or resnet18, cnn, rnn)"


@dataclass(frozen=True)
class Checkpoint:
    """Trained weights, by file, and the model they belong to."""

    files: dict[Width | None, Path]
    """One file for all widths (under None), or one for each width that was trained on its own."""
    entry: Entry
    opened: dict[Path, Any] = field(default_factory=dict)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths that were trained, in rising order."""
        if None not in self.files:
            return tuple(sorted(width for width in self.files if width is not None))
        info = read_info(self.files[None])
        return info.space.widths if info.width is None else (parse_width(info.width),)

    def file(self, width: Width) -> Path:
        """Return the file that holds a width."""
        found = self.files.get(width) or self.files.get(None)
        if found is None:
            raise ValueError(f"width {width}: the run trained a model for each of {_listed(self.widths)} and no other")
        return found

    def submodel(self, width: Width) -> nn.Module:
        """Return the plain submodel of a width."""
        path = self.file(width)
        if path not in self.opened:
            self.opened[path] = load(path, self.entry.model, self.entry.inputs)
        model = self.opened[path]
        if isinstance(model, ElasticModel):
            return model.cut(width)
        if (width,) != self.widths:
            raise ValueError(f"{path}: holds the submodel of width {self.widths[0]} alone, not {width}")
        return model

    def facts(self, width: Width) -> dict[str, str]:
        """Return what a file made of a width says of its source."""
        path = self.file(width)
        info = read_info(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"model": info.model, "source": path.name, "source_sha256": digest}


def open_checkpoint(path: Path, model: str | None = None, shape: str | None = None) -> Checkpoint:
    """Open a run folder or a file; `model` and `shape` say what neither of them knows."""
    if path.is_dir():
        files, entry = _of_run(RunFolder(path), model, shape)
        return Checkpoint(files, entry)
    info = read_info(path)
    if model is None:
        raise ValueError(f"{path}: holds the weights of a {info.model} but not its code: give {MODEL}")
    return Checkpoint({None: path}, find_model(model, shape))


def _of_run(folder: RunFolder, model: str | None, shape: str | None) -> tuple[dict[Width | None, Path], Entry]:
    config = folder.config
    known = config.get("recipe") or {}
    files = _files(folder)
    if model is not None:
        return files, find_model(model, shape)
    if "name" not in known:
        raise ValueError(f"{folder.path}: was started from Python, so the model's code is unknown: give {MODEL}")
    experiment = apply_settings(find_recipe(known["name"])(), known["set"])
    with torch.random.fork_rng(devices=[]):
        net = experiment.model()
    return files, Entry(net, (example(shape),) if shape else _inputs(folder, experiment), experiment.freeze)


def _files(folder: RunFolder) -> dict[Width | None, Path]:
    whole = folder.path / "model.safetensors"
    if whole.is_file():
        return {None: whole}
    found = sorted(folder.path.glob("model-*.safetensors"))
    if not found:
        raise ValueError(f"{folder.path}: has no model.safetensors; a run that is not over has none yet")
    return {parse_width(p.stem.removeprefix("model-").replace("of", "/")): p for p in found}


def _inputs(folder: RunFolder, experiment: Experiment) -> tuple[Any, ...]:
    """Return two examples of the recipe's data, of which only shape and type are used."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(experiment.seed, "data"))
            data = experiment.data(experiment.seed)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{folder.path}: the recipe's data would tell the input's shape; give --input ({error})"
        ) from error
    return (data.test.batch(0, 2)[0],)


def _listed(widths: tuple[Width, ...]) -> str:
    return ", ".join(map(str, widths))
