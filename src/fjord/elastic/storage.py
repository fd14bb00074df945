"""One file holds an elastic model: its weights as safetensors, its plan as JSON in the file's metadata."""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverloadPacket

from fjord.core.errors import UserError
from fjord.core.tensor_files import open_tensors, write_tensors
from fjord.core.width import Widths, parse_width
from fjord.elastic.batchnorm import StoredSlice, stored_slices
from fjord.elastic.description import (
    ModelInfo,
    RestoredModel,
    blueprint_of,
    calibration_marks,
    describe_model,
)
from fjord.elastic.model import ElasticModel, as_layer_widths
from fjord.elastic.submodel.blueprint import Blueprint, ModelFactory, as_parameters_like
from fjord.elastic.tensor_key import TensorKey
from fjord.elastic.trace.rules import RuleFunction


def save_model(model: ElasticModel, path: str | Path) -> None:
    """Write an elastic model to one file, whole or not at all."""
    marks = calibration_marks(model.calibrated)
    measured = {
        str(TensorKey(name, marks[mix])): t
        for mix, found in model.calibrated.items()
        for name, t in found.items()
    }
    write_tensors(path, model.state_dict() | measured, {"fjord": describe_model(model)})


def read_model_info(path: str | Path) -> ModelInfo:
    """Read plan and widths of a file without its weights."""
    with open_tensors(path) as file:
        metadata = file.metadata() or {}
    text = metadata.get("fjord")
    if text is None:
        raise UserError(f"{path}: holds tensors but no width plan; was it written by save()?")
    return ModelInfo.read(path, text, metadata.get("width"))


def read_submodel(path: str | Path, width: Widths) -> dict[str, Tensor]:
    """Read the tensors of one submodel; nothing else of the file is read into memory."""
    info = read_model_info(path)
    if info.width is not None:
        raise UserError(
            f"{path}: holds the submodel of width {info.width} alone; read it whole with load()"
        )
    widths = info.plan.family_widths(width)
    mark = info.calibrated.get(as_layer_widths(widths))
    kept = info.plan.leading_units(widths)
    sources = stored_slices(
        info.plan, info.space, set(info.per_width), widths, kept, calibrated=mark is not None
    )
    with open_tensors(path) as file:
        _check_tensors(path, file, info)
        for name in info.statistics if mark is not None else ():
            sources[name] = StoredSlice(
                str(TensorKey(name, mark)), [None] * len(info.plan.shapes[name])
            )
        return {
            name: _read_slice(file.get_slice(key), indices)
            for name, (key, indices) in sources.items()
        }


def write_submodel(source: str | Path, width: Widths, target: str | Path) -> dict[str, Tensor]:
    """Cut one width out of a file into a file of its own, which `load` opens."""
    tensors = read_submodel(source, width)
    write_tensors(
        target,
        tensors,
        {"fjord": read_model_info(source).text, "width": format_layer_widths(width)},
    )
    return tensors


def format_layer_widths(width: Widths) -> str:
    """Write a width as text, or widths by layer as JSON."""
    if isinstance(width, Mapping):
        return json.dumps({name: str(parse_width(value)) for name, value in width.items()})
    return str(parse_width(width))


def parse_layer_widths(text: str) -> Widths:
    """Read back a width, or widths by layer.

    >>> parse_layer_widths('{"*": "2/5"}'), parse_layer_widths("2/5")
    ({'*': Fraction(2, 5)}, Fraction(2, 5))
    """
    if text.startswith("{"):
        return {name: parse_width(value) for name, value in json.loads(text).items()}
    return parse_width(text)


def _check_tensors(path: str | Path, file: Any, info: ModelInfo) -> None:
    """Refuse a file whose tensors are not those of its plan."""
    expected = {
        name: shape for name, shape in info.plan.shapes.items() if name not in info.per_width
    }
    for width in info.space.widths if info.per_width else ():
        shapes = info.plan.cut_shapes(info.plan.leading_units(width))
        expected |= {str(TensorKey(name, width)): shapes[name] for name in info.per_width}
    for mix, mark in info.calibrated.items():
        shapes = info.plan.cut_shapes(info.plan.leading_units(dict(mix)))
        expected |= {str(TensorKey(name, mark)): shapes[name] for name in info.statistics}
    names = set(file.keys())
    if names != expected.keys():
        raise UserError(
            f"{path}: tensors missing or unknown: {', '.join(sorted(names ^ expected.keys()))}"
        )
    for name, shape in expected.items():
        found = tuple(file.get_slice(name).get_shape())
        if found != shape:
            raise UserError(f"{path}: {name} has shape {found}, its plan says {shape}")


def _read_slice(source: Any, indices: list[Tensor | None]) -> Tensor:
    """Read only the kept indices of one tensor, run by run."""
    shape = source.get_shape()
    if not shape:
        return source[...]
    runs = [
        [(0, 0, n)] if i is None else _runs(i.tolist()) for n, i in zip(shape, indices, strict=True)
    ]
    blocks = {
        block: source[tuple(slice(start, start + size) for _, start, size in block)]
        for block in product(*runs)
    }
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


def load_model(
    path: str | Path,
    build: nn.Module | Callable[[], nn.Module],
    example_inputs: Any = None,
    *,
    width: Widths | None = None,
    rules: Mapping[OpOverloadPacket, RuleFunction] | None = None,
    factory: ModelFactory | None = None,
) -> Any:
    """Read a file back: the whole elastic model, or with `width` only that submodel as a plain module.

    A file written by `fjord cut` holds one submodel and gives that.
    `build` is the model the file was made from, or a function that makes it (its weights do not matter).
    Models whose submodels are built from the graph are traced again: give `example_inputs`, and `rules` if
    there were any. Models cut by a factory need it again.
    """
    info = read_model_info(path)
    model = build if isinstance(build, nn.Module) else build()
    blueprint = blueprint_of(
        path, info, model, RestoredModel(example_inputs, dict(rules or {}), factory)
    )
    if info.width is not None:
        if width is not None:
            raise UserError(
                f"{path}: holds the submodel of width {info.width} alone; load it without a width"
            )
        with open_tensors(path) as file:
            tensors = as_parameters_like({key: file.get_tensor(key) for key in file.keys()}, model)
        return blueprint.build(
            tensors, info.plan, info.plan.leading_units(parse_layer_widths(info.width))
        ).train(model.training)
    if width is None:
        with open_tensors(path) as file:
            _check_tensors(path, file, info)
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        return _whole(blueprint, info, tensors)
    tensors = as_parameters_like(read_submodel(path, width), model)
    return blueprint.build(tensors, info.plan, info.plan.leading_units(width)).train(model.training)


def _whole(blueprint: Blueprint, info: ModelInfo, tensors: dict[str, Tensor]) -> ElasticModel:
    marks = info.calibrated.items()
    measured = {
        mix: {name: tensors.pop(str(TensorKey(name, mark))) for name in info.statistics}
        for mix, mark in marks
    }
    model = ElasticModel(
        blueprint,
        info.plan,
        info.space,
        info.norms,
        as_parameters_like(tensors, blueprint.template),
    )
    model.calibrated = measured
    return model
