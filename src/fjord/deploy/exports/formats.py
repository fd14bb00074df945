"""The formats a submodel can be written in, and the packages each needs."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.deploy.exports.plain import PlainNetwork, RunFile
from fjord.deploy.exports.to_executorch import open_executorch, write_executorch
from fjord.deploy.exports.to_onnx import open_onnx, write_onnx
from fjord.deploy.exports.to_torch import open_torch, write_torch


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

    @property
    def missing_packages(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


FORMATS = {
    "onnx": ExportFormat(
        ".onnx",
        write_onnx,
        open_onnx,
        packages=("onnx", "onnxruntime", "onnxscript"),
        extra="export",
    ),
    "executorch": ExportFormat(
        ".pte",
        write_executorch,
        open_executorch,
        packages=("executorch",),
        extra="executorch",
        unrolls=True,
    ),
    "torch": ExportFormat(".pt2", write_torch, open_torch),
}


def find_format(name: str) -> ExportFormat:
    """Return a format by name; raise an error if a package that it needs is not installed."""
    if name not in FORMATS:
        message = f"is unknown; allowed: {', '.join(FORMATS)}"
        raise UserError(message, field="to", value=name)
    selected = FORMATS[name]
    missing = selected.missing_packages
    if missing:
        hint = install_hint(selected.extra)
        message = f"needs {', '.join(missing)}, not installed: {hint}"
        raise UserError(message, field="to", value=name)
    return selected
