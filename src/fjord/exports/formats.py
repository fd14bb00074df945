"""The formats a submodel can be written in, and what each needs."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.exports import to_executorch, to_onnx, to_torch
from fjord.exports.plain import Plain, Run
from fjord.extras import how_to_install


@dataclass(frozen=True)
class Format:
    """A kind of file: how it is written and run, and what has to be installed for that."""

    suffix: str
    write: Callable[[Plain, Mapping[str, Any], Path], Plain]
    open_file: Callable[[Path], tuple[Run, dict[str, Any]]]
    packages: tuple[str, ...] = ()
    extra: str = ""
    unrolls: bool = False
    """Whether a recurrent layer becomes one copy of itself for each time step."""


FORMATS = {
    "onnx": Format(".onnx", to_onnx.write, to_onnx.open_file, ("onnx", "onnxruntime", "onnxscript"), "export"),
    "executorch": Format(
        ".pte", to_executorch.write, to_executorch.open_file, ("executorch",), "executorch", unrolls=True
    ),
    "torch": Format(".pt2", to_torch.write, to_torch.open_file),
}


def find_format(name: str) -> Format:
    """Return a format by name, if what it needs is installed."""
    if name not in FORMATS:
        raise ValueError(f"--to {name}: unknown; allowed are {', '.join(FORMATS)}")
    found = FORMATS[name]
    missing = [package for package in found.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f"--to {name}: not installed: {', '.join(missing)}: {how_to_install(found.extra)}")
    return found
