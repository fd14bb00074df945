"""From a plain network to a graph of operations, which every format starts from."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import PlainNetwork, fixed_inputs

if TYPE_CHECKING:  # the module loads torch's compiler, which only those who export should wait for
    from torch.export import ExportedProgram

NOISY = ("torch.onnx", "torch.export", "torch.fx", "torch.utils._pytree", "torchao", "executorch")


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Keep what converters say about themselves from the user; what goes wrong is an error."""
    levels = {name: logging.getLogger(name).level for name in NOISY}
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
            return _export(plain), plain
        except Exception:  # torch.export has no one error for a size that cannot stay open
            plain = fixed_inputs(plain)
    try:
        return _export(plain), plain
    except Exception as error:
        raise UserError(f"the model cannot be exported: {first_line(error)}") from error


def _export(plain: PlainNetwork) -> "ExportedProgram":
    axes = tuple(
        None if axis is None else {axis: torch.export.Dim.DYNAMIC} for axis in plain.batch_axes
    )
    names = (axes,) if plain.note == "" else (axes[0], axes[1:])
    with torch.no_grad():
        program = torch.export.export(
            plain.module, plain.example, dynamic_shapes=names if plain.open_batch else None
        )
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop(
                "stack_trace", None
            )  # a file for others must not hold the paths of this machine
    return program


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line, from its deepest cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
