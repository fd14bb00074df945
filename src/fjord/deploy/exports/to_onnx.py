"""ONNX files, which ONNX Runtime and most other runtimes run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import PlainNetwork, RunFile, Tensors
from fjord.deploy.exports.traced import dynamic_shapes, first_line, trace_network

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

FACTS_KEY = "fjord"
MOST_BYTES = 2**31 - 1
"""The bytes a single ONNX file can hold."""


def write_onnx(plain: PlainNetwork, facts: Mapping[str, Any], path: Path) -> PlainNetwork:
    """Write an ONNX file with its weights in it; return the network as it was written."""
    _check_size(plain.module)
    converted, plain = _convert(plain)
    model = converted.model
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # how torch derived the node: of no use on a device
    model.metadata_props[FACTS_KEY] = json.dumps({**facts, "inputs": plain.describe_inputs()})
    converted.save(str(path), external_data=False)
    return plain


def _check_size(module: nn.Module) -> None:
    size = 0
    for tensor in module.state_dict().values():
        size += tensor.numel() * tensor.element_size()
    if size > MOST_BYTES:
        raise UserError(
            f"the weights take {size:,} bytes; one ONNX file holds at most {MOST_BYTES:,}"
        )


def _convert(plain: PlainNetwork) -> "tuple[ONNXProgram, PlainNetwork]":
    program, plain = trace_network(plain)
    try:
        converted = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=plain.inputs,
            output_names=plain.outputs,
            dynamic_shapes=dynamic_shapes(plain, "batch"),
            external_data=False,
        )
    except torch.onnx.OnnxExporterError as error:
        message = f"cannot express the model: {first_line(error)}"
        raise UserError(message, field="to", value="onnx") from error
    assert converted is not None
    return converted, plain


def open_onnx(path: Path) -> tuple[RunFile, dict[str, Any]]:
    """Return a function that runs a file in ONNX Runtime with one thread, and its facts."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(tensors: Sequence[Tensor]) -> Tensors:
        feeds = {}
        for name, tensor in zip(names, tensors, strict=True):
            feeds[name] = tensor.numpy()
        return [torch.from_numpy(array) for array in session.run(None, feeds)]

    metadata = session.get_modelmeta().custom_metadata_map
    return run, json.loads(metadata[FACTS_KEY])
