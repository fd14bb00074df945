"""Save an elastic model in one file: weights as safetensors, the plan as JSON in its metadata."""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverloadPacket

from fjord.core.errors import UserError
from fjord.core.tensor_files import open_tensors, write_tensors
from fjord.core.width import Widths, parse_width
from fjord.elastic.batchnorm import StoredSlice, stored_slices
from fjord.elastic.description import (
    ModelInfo,
    RebuildOptions,
    calibration_labels,
    describe_model,
    restore_blueprint,
)
from fjord.elastic.indexing import AxisIndices, all_indices, sliced_shape
from fjord.elastic.model import ElasticModel, as_layer_widths
from fjord.elastic.submodel.blueprint import Blueprint, ModelFactory, as_parameters_like
from fjord.elastic.tensor_key import TensorKey
from fjord.elastic.trace.rules import RuleFunction


def save_model(model: ElasticModel, path: str | Path) -> None:
    """Write an elastic model to one file, whole or not at all."""
    tensors = model.state_dict()
    labels = calibration_labels(model.calibrated)
    for layer_widths, statistics in model.calibrated.items():
        for name, value in statistics.items():
            key = str(TensorKey(name, labels[layer_widths]))
            tensors[key] = value
    write_tensors(path, tensors, {"fjord": describe_model(model)})


def read_model_info(path: str | Path) -> ModelInfo:
    """Read plan and widths of a file without its weights."""
    with open_tensors(path) as file:
        metadata = file.metadata() or {}
    text = metadata.get("fjord")
    if text is None:
        raise UserError(f"{path}: holds tensors but no width plan; was it written by save()?")
    return ModelInfo.parse(path, text, metadata.get("width"))


def read_submodel(path: str | Path, width: Widths) -> dict[str, Tensor]:
    """Read the tensors of one submodel; nothing else of the file is read into memory."""
    info = read_model_info(path)
    if info.width is not None:
        raise UserError(
            f"{path}: holds the submodel of width {info.width} alone; "
            "read it whole with load_model()"
        )
    plan = info.plan
    widths = plan.family_widths(width)
    label = info.calibrated.get(as_layer_widths(widths))
    calibrated = label is not None
    per_width = set(info.per_width)
    units = plan.leading_units(widths)
    slices = stored_slices(plan, info.space, per_width, widths, units, calibrated=calibrated)
    if calibrated:
        for name in info.statistics:
            key = str(TensorKey(name, label))
            num_axes = len(plan.shapes[name])
            slices[name] = StoredSlice(key, all_indices(num_axes))
    with open_tensors(path) as file:
        _check_tensors(path, file, info)
        tensors = {}
        for name, (key, indices) in slices.items():
            tensors[name] = _read_slice(file.get_slice(key), indices)
        return tensors


def write_submodel(
    source: str | Path,
    width: Widths,
    target: str | Path,
) -> dict[str, Tensor]:
    """Cut one width out of a file into a file of its own, which `load` opens."""
    tensors = read_submodel(source, width)
    description = read_model_info(source).text
    write_tensors(target, tensors, {"fjord": description, "width": format_layer_widths(width)})
    return tensors


def format_layer_widths(width: Widths) -> str:
    """Write a width as text, or widths by layer as JSON."""
    if isinstance(width, Mapping):
        texts = {name: str(parse_width(value)) for name, value in width.items()}
        return json.dumps(texts)
    return str(parse_width(width))


def parse_layer_widths(text: str) -> Widths:
    """Read back a width, or widths by layer.

    >>> parse_layer_widths('{"*": "2/5"}'), parse_layer_widths("2/5")
    ({'*': Fraction(2, 5)}, Fraction(2, 5))
    """
    if text.startswith("{"):
        return {name: parse_width(value) for name, value in json.loads(text).items()}
    return parse_width(text)


def _check_tensors(
    path: str | Path,
    file: Any,
    info: ModelInfo,
) -> None:
    """Raise an error unless the tensors of a file are those of its plan."""
    expected = _expected_shapes(info)
    names = set(file.keys())
    if names != expected.keys():
        different = ", ".join(sorted(names ^ expected.keys()))
        raise UserError(f"{path}: tensors missing or unknown: {different}")
    for name, shape in expected.items():
        stored = tuple(file.get_slice(name).get_shape())
        if stored != shape:
            raise UserError(f"{path}: {name} has shape {stored}, its plan says {shape}")


def _expected_shapes(info: ModelInfo) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a file with a whole model has, by key."""
    plan = info.plan
    expected = {}
    for name, shape in plan.shapes.items():
        if name not in info.per_width:
            expected[name] = shape
    if info.per_width:
        for width in info.space.widths:
            shapes = plan.cut_shapes(plan.leading_units(width))
            for name in info.per_width:
                expected[str(TensorKey(name, width))] = shapes[name]
    for layer_widths, label in info.calibrated.items():
        shapes = plan.cut_shapes(plan.leading_units(dict(layer_widths)))
        for name in info.statistics:
            expected[str(TensorKey(name, label))] = shapes[name]
    return expected


class _IndexRun(NamedTuple):
    """Consecutive indices along one axis of a stored tensor."""

    position: int
    """Where the run begins in the tensor that is read."""
    start: int
    """Where the run begins in the stored tensor."""
    length: int

    def stored_range(self) -> slice:
        """Return the indices in the stored tensor."""
        return slice(self.start, self.start + self.length)

    def result_range(self) -> slice:
        """Return the indices in the tensor that is read."""
        return slice(self.position, self.position + self.length)


def _read_slice(source: Any, indices: AxisIndices) -> Tensor:
    """Read only the kept indices of one tensor, run by run."""
    shape = source.get_shape()
    if not shape:
        return source[...]
    sizes = tuple(sliced_shape(shape, indices))
    axes = []
    for size, index in zip(shape, indices, strict=True):
        if index is None:
            axes.append([_IndexRun(0, 0, size)])
        else:
            axes.append(_split_runs(index.tolist()))
    result = None
    for block in product(*axes):
        value = source[tuple(run.stored_range() for run in block)]
        if result is None:
            if tuple(value.shape) == sizes:  # a single block
                return value
            result = torch.empty(sizes, dtype=value.dtype)
        result[tuple(run.result_range() for run in block)] = value
    assert result is not None
    return result


def _split_runs(indices: list[int]) -> list[_IndexRun]:
    """Split rising indices into runs.

    >>> _split_runs([4, 5, 8])
    [_IndexRun(position=0, start=4, length=2), _IndexRun(position=2, start=8, length=1)]
    """
    runs: list[_IndexRun] = []
    for position, index in enumerate(indices):
        last = runs[-1] if runs else None
        if last is not None and index == last.start + last.length:
            runs[-1] = last._replace(length=last.length + 1)
        else:
            runs.append(_IndexRun(position, index, 1))
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
    """Read a file back: the whole elastic model, or with `width` only that submodel as a module.

    A file written by `fjord cut` holds one submodel and gives that. `build` is the model the file
    was made from, or a function that makes it (its weights do not matter). Models whose submodels
    are built from the graph are traced again: give `example_inputs`, and `rules` if there were any.
    Models cut by a factory need it again.
    """
    info = read_model_info(path)
    model = build if isinstance(build, nn.Module) else build()
    options = RebuildOptions(example_inputs, dict(rules or {}), factory)
    blueprint = restore_blueprint(path, info, model, options)
    if info.width is not None:
        if width is not None:
            raise UserError(
                f"{path}: holds the submodel of width {info.width} alone; load it without a width"
            )
        width = parse_layer_widths(info.width)
        with open_tensors(path) as file:
            tensors = _read_all(file)
    elif width is None:
        with open_tensors(path) as file:
            _check_tensors(path, file, info)
            tensors = _read_all(file)
        return _whole_model(blueprint, info, tensors)
    else:
        tensors = read_submodel(path, width)
    parameters = as_parameters_like(tensors, model)
    units = info.plan.leading_units(width)
    net = blueprint.build(parameters, info.plan, units)
    return net.train(model.training)


def _read_all(file: Any) -> dict[str, Tensor]:
    return {key: file.get_tensor(key) for key in file.keys()}


def _whole_model(
    blueprint: Blueprint,
    info: ModelInfo,
    stored: Mapping[str, Tensor],
) -> ElasticModel:
    """Return the elastic model with these tensors and the statistics measured after training."""
    tensors = dict(stored)
    calibrated = {}
    for layer_widths, label in info.calibrated.items():
        statistics = {}
        for name in info.statistics:
            key = str(TensorKey(name, label))
            statistics[name] = tensors.pop(key)
        calibrated[layer_widths] = statistics
    parameters = as_parameters_like(tensors, blueprint.template)
    model = ElasticModel(blueprint, info.plan, info.space, info.norms, parameters)
    model.calibrated = calibrated
    return model
