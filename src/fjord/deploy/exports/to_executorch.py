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

FACTS = "fjord"


def write(plain: PlainNetwork, facts: Mapping[str, Any], path: Path) -> PlainNetwork:
    """Write a file for one example a call, whose memory is planned in advance; return the network as written."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program, plain = trace_network(fixed_inputs(plain))
    text = json.dumps({**facts, "inputs": plain.described()})
    try:
        edge = to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()], constant_methods={FACTS: text}
        )
        path.write_bytes(edge.to_executorch().buffer)
    except (RuntimeError, NotImplementedError, torch._export.verifier.SpecViolationError) as error:
        raise UserError(f"--to executorch: {first_line(error)}") from error
    return plain


def open_file(path: Path) -> tuple[RunFile, dict[str, Any]]:
    """Return a function that runs a file with one thread, and the facts in it."""
    with _logged():
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        if portable_lib._threadpool_get_thread_count() != 1:
            portable_lib._unsafe_reset_threadpool(1)
        program = Runtime.get().load_program(path)
        method, facts = program.load_method("forward"), program.load_method(FACTS)
        if method is None or facts is None:
            raise RuntimeError("the runtime does not find its methods")

    def run(tensors: Sequence[Tensor]) -> Tensors:
        return [
            t.clone() for t in method.execute(list(tensors))
        ]  # outputs lie in memory the next call reuses

    return run, json.loads(facts.execute([])[0])


@contextmanager
def _logged() -> Iterator[None]:
    """Keep what the runtime writes past Python to standard error, and show its last line if something goes wrong."""
    with tempfile.TemporaryFile() as log:
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except RuntimeError as error:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"{error}; {said[-1]}" if said else str(error)) from None
        finally:
            os.dup2(before, 2)
            os.close(before)
