"""One file holds an elastic model: its weights as safetensors, its plan as JSON in the file's metadata."""

import json
import os
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._ops import OpOverloadPacket

from fjord.elastic.blueprint import Blueprint, Factory, as_kinds
from fjord.elastic.description import Info, Remade, blueprint_of, calibration_marks, describe
from fjord.elastic.model import ElasticModel, as_mix
from fjord.elastic.norms import locate
from fjord.elastic.rules import Rule
from fjord.width import Widths, parse_width


def save(model: ElasticModel, path: str | Path) -> None:
    """Write an elastic model to one file, whole or not at all."""
    marks = calibration_marks(model.calibrated)
    measured = {f"{name}@{marks[mix]}": t for mix, found in model.calibrated.items() for name, t in found.items()}
    write(path, model.state_dict() | measured, {"fjord": describe(model)})


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file beside its place, then move it there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file({k: t.detach().contiguous() for k, t in tensors.items()}, draft, metadata)
        draft.chmod(0o666 & ~_umask())  # safetensors leaves files to their owner alone
        put_in_place(draft, path)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        raise ValueError(f"{path}: cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def put_in_place(draft: Path, path: Path) -> None:
    """Give a draft its name, which must never stand for a file that a power cut left empty."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, path)


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors of a safetensors file, and its metadata."""
    with _open(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}


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
        metadata = file.metadata() or {}
    text = metadata.get("fjord")
    if text is None:
        raise ValueError(f"{path}: holds tensors but no width plan; was it written by save()?")
    return Info.read(path, text, metadata.get("width"))


def read_cut(path: str | Path, width: Widths) -> dict[str, Tensor]:
    """Read the tensors of one submodel; nothing else of the file is read into memory."""
    info = read_info(path)
    if info.width is not None:
        raise ValueError(f"{path}: holds the submodel of width {info.width} alone; read it whole with load()")
    widths = info.plan.widths(width)
    mark = info.calibrated.get(as_mix(widths))
    kept = info.plan.ordered(widths)
    sources = locate(info.plan, info.space, set(info.per_width), widths, kept, calibrated=mark is not None)
    with _open(path) as file:
        _check_tensors(path, file, info)
        for name in info.statistics if mark is not None else ():
            sources[name] = (f"{name}@{mark}", [None] * len(info.plan.shapes[name]))
        return {name: _read_slice(file.get_slice(key), indices) for name, (key, indices) in sources.items()}


def write_cut(source: str | Path, width: Widths, target: str | Path) -> dict[str, Tensor]:
    """Cut one width out of a file into a file of its own, which `load` opens."""
    tensors = read_cut(source, width)
    write(target, tensors, {"fjord": read_info(source).text, "width": show_widths(width)})
    return tensors


def show_widths(width: Widths) -> str:
    """Write a width as text, or widths by layer as JSON."""
    if isinstance(width, Mapping):
        return json.dumps({name: str(parse_width(value)) for name, value in width.items()})
    return str(parse_width(width))


def parse_widths(text: str) -> Widths:
    """Read back a width, or widths by layer.

    >>> parse_widths('{"*": "2/5"}'), parse_widths("2/5")
    ({'*': Fraction(2, 5)}, Fraction(2, 5))
    """
    if text.startswith("{"):
        return {name: parse_width(value) for name, value in json.loads(text).items()}
    return parse_width(text)


def _check_tensors(path: str | Path, file: Any, info: Info) -> None:
    """Refuse a file whose tensors are not those of its plan."""
    expected = {name: shape for name, shape in info.plan.shapes.items() if name not in info.per_width}
    for width in info.space.widths if info.per_width else ():
        shapes = info.plan.cut_shapes(info.plan.ordered(width))
        expected |= {f"{name}@{width}": shapes[name] for name in info.per_width}
    for mix, mark in info.calibrated.items():
        shapes = info.plan.cut_shapes(info.plan.ordered(dict(mix)))
        expected |= {f"{name}@{mark}": shapes[name] for name in info.statistics}
    names = set(file.keys())
    if names != expected.keys():
        raise ValueError(f"{path}: tensors missing or unknown: {', '.join(sorted(names ^ expected.keys()))}")
    for name, shape in expected.items():
        found = tuple(file.get_slice(name).get_shape())
        if found != shape:
            raise ValueError(f"{path}: {name} has shape {found}, its plan says {shape}")


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
    *,
    width: Widths | None = None,
    rules: Mapping[OpOverloadPacket, Rule] | None = None,
    factory: Factory | None = None,
) -> Any:
    """Read a file back: the whole elastic model, or with `width` only that submodel as a plain module.

    A file written by `fjord cut` holds one submodel and gives that.
    `build` is the model the file was made from, or a function that makes it (its weights do not matter).
    Models whose submodels are built from the graph are traced again: give `example_inputs`, and `rules` if
    there were any. Models cut by a factory need it again.
    """
    info = read_info(path)
    model = build if isinstance(build, nn.Module) else build()
    blueprint = blueprint_of(path, info, model, Remade(example_inputs, dict(rules or {}), factory))
    if info.width is not None:
        if width is not None:
            raise ValueError(f"{path}: holds the submodel of width {info.width} alone; load it without a width")
        with _open(path) as file:
            tensors = as_kinds({key: file.get_tensor(key) for key in file.keys()}, model)
        return blueprint.build(tensors, info.plan, info.plan.ordered(parse_widths(info.width))).train(model.training)
    if width is None:
        with _open(path) as file:
            _check_tensors(path, file, info)
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        return _whole(blueprint, info, tensors)
    tensors = as_kinds(read_cut(path, width), model)
    return blueprint.build(tensors, info.plan, info.plan.ordered(width)).train(model.training)


def _whole(blueprint: Blueprint, info: Info, tensors: dict[str, Tensor]) -> ElasticModel:
    marks = info.calibrated.items()
    measured = {mix: {name: tensors.pop(f"{name}@{mark}") for name in info.statistics} for mix, mark in marks}
    model = ElasticModel(blueprint, info.plan, info.space, info.norms, as_kinds(tensors, blueprint.template))
    model.calibrated = measured
    return model
