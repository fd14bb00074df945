"""ExecuTorch files (.pte) for phones and small boards, computed by XNNPACK where it can."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import PlainNetwork, RunFile, Tensors, fixed_inputs
from fjord.deploy.exports.traced import first_line, trace_network

FACTS_METHOD = "fjord"
STANDARD_ERROR = 2


def write_executorch(plain: PlainNetwork, facts: Mapping[str, Any], path: Path) -> PlainNetwork:
    """Write a file for one example a call, as its memory is planned in advance.

    Return the network as it was written.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program, plain = trace_network(fixed_inputs(plain))
    text = json.dumps({**facts, "inputs": plain.describe_inputs()})
    try:
        edge = to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()], constant_methods={FACTS_METHOD: text}
        )
        path.write_bytes(edge.to_executorch().buffer)
    except (RuntimeError, NotImplementedError, torch._export.verifier.SpecViolationError) as error:
        message = f"cannot express the model: {first_line(error)}"
        raise UserError(message, field="to", value="executorch") from error
    return plain


def open_executorch(path: Path) -> tuple[RunFile, dict[str, Any]]:
    """Return a function that runs a file with one thread, and the facts in it."""
    with _capture_log():
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        if portable_lib._threadpool_get_thread_count() != 1:
            portable_lib._unsafe_reset_threadpool(1)
        program = Runtime.get().load_program(path)
        method = program.load_method("forward")
        facts = program.load_method(FACTS_METHOD)
        if method is None or facts is None:
            raise RuntimeError("the runtime does not find its methods")

    def run(tensors: Sequence[Tensor]) -> Tensors:
        outputs = method.execute(list(tensors))
        return [tensor.clone() for tensor in outputs]  # the next call reuses their memory

    return run, json.loads(facts.execute([])[0])


@contextmanager
def _capture_log() -> Iterator[None]:
    """Hide what the runtime writes past Python to standard error.

    If the runtime fails, its last line is added to the error.
    """
    with tempfile.TemporaryFile() as log:
        before = os.dup(STANDARD_ERROR)
        os.dup2(log.fileno(), STANDARD_ERROR)
        try:
            yield
        except RuntimeError as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            message = str(error)
            if lines:
                message += f"; {lines[-1]}"
            raise RuntimeError(message) from None
        finally:
            os.dup2(before, STANDARD_ERROR)
            os.close(before)
