"""The formats a submodel can be written in, and what each needs."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.deploy.exports import to_executorch, to_onnx, to_torch
from fjord.deploy.exports.plain import PlainNetwork, RunFile


@dataclass(frozen=True)
class ExportFormat:
    """A kind of file: how it is written and run, and what has to be installed for that."""

    suffix: str
    write: Callable[[PlainNetwork, Mapping[str, Any], Path], PlainNetwork]
    open_file: Callable[[Path], tuple[RunFile, dict[str, Any]]]
    packages: tuple[str, ...] = ()
    extra: str = ""
    unrolls: bool = False
    """Whether a recurrent layer becomes one copy of itself for each time step."""


FORMATS = {
    "onnx": ExportFormat(
        ".onnx", to_onnx.write, to_onnx.open_file, ("onnx", "onnxruntime", "onnxscript"), "export"
    ),
    "executorch": ExportFormat(
        ".pte",
        to_executorch.write,
        to_executorch.open_file,
        ("executorch",),
        "executorch",
        unrolls=True,
    ),
    "torch": ExportFormat(".pt2", to_torch.write, to_torch.open_file),
}


def find_format(name: str) -> ExportFormat:
    """Return a format by name, if what it needs is installed."""
    if name not in FORMATS:
        raise UserError(f"--to {name}: unknown; allowed are {', '.join(FORMATS)}")
    found = FORMATS[name]
    missing = [package for package in found.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"--to {name}: not installed: {', '.join(missing)}: {install_hint(found.extra)}"
        )
    return found
