"""Tensors in safetensors files: written whole or not at all, read without pickle."""

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.files import atomic_write


def write_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and text about them to one file, in place of the one that was there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    plain = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
    try:
        with atomic_write(path) as draft:
            save_file(plain, draft, metadata)
            draft.chmod(0o666 & ~_umask())  # safetensors leaves files to their owner alone
    except (OSError, SafetensorError) as error:  # a full disk is safetensors' own error
        raise UserError(f"{path}: cannot be written: {error}") from error


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors of a file, and its metadata."""
    with open_tensors(path) as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        return tensors, file.metadata() or {}


def open_tensors(path: str | Path) -> Any:
    """Open a file to read some of its tensors, or slices of them."""
    if not Path(path).is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise UserError(
            f"{path}: not a whole safetensors file, it may have been cut short ({error})"
        ) from error
