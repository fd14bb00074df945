"""One file holds an elastic model: its weights as safetensors, its plan as JSON in the file's metadata."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fjord.elastic.blueprint import Blueprint, without_weights
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel, Norms, locate, norm_tensors
from fjord.elastic.plan import WidthPlan
from fjord.elastic.trace import named_tensors
from fjord.width import Widths, WidthSpace

FORMAT = 1


@dataclass(frozen=True)
class Info:
    """What a file says of its model beside the weights."""

    model: str
    plan: WidthPlan
    space: WidthSpace
    norms: Norms
    per_width: frozenset[str]
    route: str


def save(model: ElasticModel, path: str | Path) -> None:
    """Write an elastic model to one file, whole or not at all."""
    info = {
        "format": FORMAT,
        "model": type(model.blueprint.template).__name__,
        "plan": model.plan.to_json(),
        "widths": {str(w): str(p) for w, p in zip(model.space.widths, model.space.probabilities, strict=True)},
        "norms": model.norms,
        "per_width": sorted(norm_tensors(model.blueprint.template, model.norms)),
        "route": model.blueprint.route,
    }
    write(path, model.state_dict(), {"fjord": json.dumps(info)})


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file beside its place, then move it there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file({k: t.detach().contiguous() for k, t in tensors.items()}, draft, metadata)
        os.replace(draft, path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _open(path: str | Path) -> Any:
    if not Path(path).is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file, it may have been cut short ({error})") from error


def read_info(path: str | Path) -> Info:
    """Read plan and widths of a file without its weights."""
    with _open(path) as file:
        text = (file.metadata() or {}).get("fjord")
    if text is None:
        raise ValueError(f"{path}: holds tensors but no width plan; was it written by save()?")
    data = json.loads(text)
    if data["format"] != FORMAT:
        raise ValueError(f"{path}: written in format {data['format']}, this version reads format {FORMAT}")
    space = WidthSpace.of({w: Fraction(p) for w, p in data["widths"].items()})
    plan = WidthPlan.from_json(data["plan"])
    return Info(data["model"], plan, space, data["norms"], frozenset(data["per_width"]), data["route"])


def read_cut(path: str | Path, width: Widths) -> dict[str, Tensor]:
    """Read the tensors of one submodel; nothing else of the file is read into memory."""
    info = read_info(path)
    widths = info.plan.widths(width)
    sources = locate(info.plan, info.space, set(info.per_width), widths, info.plan.ordered(widths))
    with _open(path) as file:
        return {name: _read_slice(file.get_slice(key), indices) for name, (key, indices) in sources.items()}


def _read_slice(source: Any, indices: list[Tensor | None]) -> Tensor:
    """Read only the kept indices of one tensor, run by run."""
    shape = source.get_shape()
    if not shape:
        return source[...]
    runs = [[(0, 0, n)] if i is None else _runs(i.tolist()) for n, i in zip(shape, indices, strict=True)]
    blocks = {block: source[tuple(slice(start, start + size) for _, start, size in block)] for block in product(*runs)}
    if len(blocks) == 1:
        return next(iter(blocks.values()))
    first = next(iter(blocks.values()))
    result = torch.empty([sum(size for _, _, size in axis) for axis in runs], dtype=first.dtype)
    for block, value in blocks.items():
        result[tuple(slice(at, at + size) for at, _, size in block)] = value
    return result


def _runs(indices: list[int]) -> list[tuple[int, int, int]]:
    """Split rising indices into runs: (place in the result, first index, length)."""
    runs: list[tuple[int, int, int]] = []
    for place, index in enumerate(indices):
        if runs and index == runs[-1][1] + runs[-1][2]:
            at, start, size = runs[-1]
            runs[-1] = (at, start, size + 1)
        else:
            runs.append((place, index, 1))
    return runs


def load(
    path: str | Path,
    build: nn.Module | Callable[[], nn.Module],
    example_inputs: Any = None,
    width: Widths | None = None,
) -> Any:
    """Read a file back: the whole elastic model, or with `width` only that submodel as a plain module.

    `build` is the model the file was made from, or a function that makes it (its weights do not matter).
    Models whose submodels are built from the graph are traced again and need `example_inputs`.
    """
    info = read_info(path)
    blueprint = _blueprint(path, info, build, example_inputs)
    if width is None:
        with _open(path) as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        return ElasticModel(blueprint, info.plan, info.space, info.norms, _as_kinds(tensors, blueprint.template))
    tensors = _as_kinds(read_cut(path, width), blueprint.template)
    return blueprint.build(tensors, info.plan, info.plan.ordered(width))


def _blueprint(
    path: str | Path, info: Info, build: nn.Module | Callable[[], nn.Module], example_inputs: Any
) -> Blueprint:
    model = build if isinstance(build, nn.Module) else build()
    shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
    if shapes != dict(info.plan.shapes):
        wrong = sorted(set(shapes.items()) ^ set(info.plan.shapes.items()))[:4]
        raise ValueError(
            f"{path}: holds a {info.model} whose tensors differ from the given {type(model).__name__}: {wrong}"
        )
    if info.route == "module":
        return Blueprint(without_weights(model))
    if example_inputs is None:
        raise ValueError(f"{path}: submodels of {info.model} are built from its graph: give load() the example_inputs")
    return elasticize(model, example_inputs, widths=info.space, norms=info.norms).blueprint


def _as_kinds(tensors: dict[str, Tensor], template: nn.Module) -> dict[str, Tensor]:
    """Make each tensor a parameter or a buffer, as it is in the model."""
    parameters = {name: p.requires_grad for name, p in template.named_parameters()}
    return {
        key: nn.Parameter(t, parameters[n]) if (n := key.partition("@")[0]) in parameters else t
        for key, t in tensors.items()
    }
