"""ONNX files, which ONNX Runtime and most others run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import PlainNetwork, RunFile, Tensors
from fjord.deploy.exports.traced import first_line, trace_network

FACTS = "fjord"
LIMIT = 2**31 - 1
"""The bytes a single ONNX file can hold."""


def write(plain: PlainNetwork, facts: Mapping[str, Any], path: Path) -> PlainNetwork:
    """Write an ONNX file with its weights in it; return the network as it was written."""
    size = sum(t.numel() * t.element_size() for t in plain.module.state_dict().values())
    if size > LIMIT:
        raise UserError(f"the weights take {size:,} bytes; one ONNX file holds at most {LIMIT:,}")
    program, plain = trace_network(plain)
    axes = tuple(None if axis is None else {axis: "batch"} for axis in plain.batch_axes)
    shapes = ((axes,) if plain.note == "" else (axes[0], axes[1:])) if plain.open_batch else None
    try:
        converted = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=plain.inputs,
            output_names=plain.outputs,
            dynamic_shapes=shapes,
            external_data=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"--to onnx: {first_line(error)}") from error
    assert converted is not None
    model = converted.model
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # how torch came to it: of no use on a device
    model.metadata_props[FACTS] = json.dumps({**facts, "inputs": plain.described()})
    converted.save(str(path), external_data=False)
    return plain


def open_file(path: Path) -> tuple[RunFile, dict[str, Any]]:
    """Return a function that runs a file in ONNX Runtime with one thread, and the facts in it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(tensors: Sequence[Tensor]) -> Tensors:
        arrays = session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})
        return [torch.from_numpy(array) for array in arrays]

    return run, json.loads(session.get_modelmeta().custom_metadata_map[FACTS])
