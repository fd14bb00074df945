"""From a plain network to a graph of operations, which every format starts from."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import PlainNetwork, fixed_inputs

if TYPE_CHECKING:  # it loads torch's compiler, which only those who export should wait for
    from torch.export import ExportedProgram

NOISY_LOGGERS = (
    "torch.onnx",
    "torch.export",
    "torch.fx",
    "torch.utils._pytree",
    "torchao",
    "executorch",
)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Hide the warnings and log lines of converters; a failure is an error anyway."""
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def trace_network(plain: PlainNetwork) -> "tuple[ExportedProgram, PlainNetwork]":
    """Return the graph of a network, for any batch where the network allows it."""
    if plain.open_batch:
        try:
            return _export_program(plain), plain
        except Exception:  # torch.export has no single error for a size that cannot stay open
            plain = fixed_inputs(plain)
    try:
        return _export_program(plain), plain
    except Exception as error:
        raise UserError(f"the model cannot be exported: {first_line(error)}") from error


def _export_program(plain: PlainNetwork) -> "ExportedProgram":
    shapes = dynamic_shapes(plain, torch.export.Dim.DYNAMIC)
    with torch.no_grad():
        program = torch.export.export(plain.module, plain.example, dynamic_shapes=shapes)
    _remove_stack_traces(program)
    return program


def dynamic_shapes(plain: PlainNetwork, batch: Any) -> tuple[Any, ...] | None:
    """Return the sizes that stay open, as torch.export takes them; None if all are fixed.

    `batch` describes an open size. The shapes follow the signature of `forward`: a whole network
    has `*tensors`, and a step has `x, *states`.
    """
    if not plain.open_batch:
        return None
    shapes: list[dict[int, Any] | None] = []
    for axis in plain.batch_axes:
        if axis is None:
            shapes.append(None)
        else:
            shapes.append({axis: batch})
    if plain.is_step:
        return (shapes[0], tuple(shapes[1:]))
    return (tuple(shapes),)


def _remove_stack_traces(program: "ExportedProgram") -> None:
    """Remove the paths of this machine from a program that others will read."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, from its deepest cause.

    >>> first_line(ValueError("wrong shape\nand more"))
    'wrong shape'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__
