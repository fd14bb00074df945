"""Tensors in safetensors files: written completely or not at all, read without pickle."""

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.files import atomic_write


def write_tensors(
    path: str | Path,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
) -> None:
    """Write tensors and text about them to one file, which replaces an older one."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    plain_tensors = {}
    for key, tensor in tensors.items():
        plain_tensors[key] = tensor.detach().contiguous()
    try:
        with atomic_write(path) as draft:
            save_file(plain_tensors, draft, metadata)
            # safetensors lets nobody but the owner read its files.
            draft.chmod(0o666 & ~current_umask())
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        raise UserError(f"{path}: cannot be written: {error}") from error


def current_umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors of a file, and its metadata."""
    tensors = {}
    with open_tensors(path) as file:
        for key in file.keys():
            tensors[key] = file.get_tensor(key)
        return tensors, file.metadata() or {}


def open_tensors(path: str | Path) -> Any:
    """Open a file to read some of its tensors, or slices of them."""
    if not Path(path).is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        fault = "not a complete safetensors file, it may be truncated"
        raise UserError(f"{path}: {fault} ({error})") from error
