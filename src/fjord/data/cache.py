"""Data decoded once: the tensors of a build in one file, mapped into memory, checked by a digest.

The folder is FJORD_CACHE, else XDG_CACHE_HOME/fjord, else ~/.cache/fjord; it may be deleted at any
time.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.tensor_files import read_tensors, write_tensors


def cache_folder() -> Path:
    """Return the folder of decoded data."""
    own_folder = os.environ.get("FJORD_CACHE")
    if own_folder:
        return Path(own_folder).expanduser()
    shared_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shared_folder) / "fjord"


class CachedTensors(dict[str, Tensor]):
    """Tensors by name, and the digest of them all."""

    digest = ""


def load_cached(
    name: str,
    key: Mapping[str, Any],
    build: Callable[[], dict[str, Tensor]],
) -> CachedTensors:
    """Return the tensors that `build` makes, read from a file if an equal key was built before.

    The key is plain data that says everything the tensors depend on. The tensors are mapped from
    the file, and shared by all processes that use them. A damaged file is deleted with a warning
    and built again.
    """
    key_text = json.dumps(key, sort_keys=True)
    path = cache_folder() / _file_name(name, key_text)
    # Without the lock first, so that a finished cache may be read-only.
    with suppress(FileNotFoundError, _DamagedFileError):
        return _open_file(path, key_text)
    with _file_lock(path):
        try:
            return _open_file(path, key_text)  # another process built it while this one waited
        except FileNotFoundError:
            pass
        except _DamagedFileError as error:
            warnings.warn(f"{error}; it is deleted and built again", stacklevel=2)
        _write_file(path, build(), key_text)
        return _open_file(path, key_text)


def _file_name(name: str, key_text: str) -> str:
    digest = hashlib.blake2b(key_text.encode(), digest_size=8)
    return f"{name}-{digest.hexdigest()}.safetensors"


class _DamagedFileError(Exception):
    """A file does not hold what was written to it."""


def _open_file(path: Path, key_text: str) -> CachedTensors:
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        tensors, metadata = read_tensors(path)
    except ValueError as error:
        raise _DamagedFileError(str(error)) from error
    except OSError as error:
        fault = f"cannot be read ({error}); set FJORD_CACHE to another folder"
        raise UserError(f"{path}: {fault}") from error
    result = CachedTensors(tensors)
    result.digest = tensors_digest(tensors)
    if metadata.get("key") != key_text or metadata.get("digest") != result.digest:
        raise _DamagedFileError(f"{path}: the content does not match its digest")
    return result


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names, types, shapes and bytes.

    SHA-256, because processors have instructions for it: 1.8 GB a second, against 0.9 of BLAKE2b.
    CRC-32 is faster still (4.2), but reading the bytes from a disk takes longer than either.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        description = repr((name, str(tensor.dtype), tuple(tensor.shape)))
        digest.update(description.encode())
        flat = tensor.detach().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write_file(path: Path, tensors: dict[str, Tensor], key_text: str) -> None:
    # Whoever writes has the lock: other drafts are of processes that were killed.
    for draft in path.parent.glob(f".{path.name}.*.tmp"):
        draft.unlink(missing_ok=True)
    metadata = {"key": key_text, "digest": tensors_digest(tensors)}
    try:
        write_tensors(path, tensors, metadata)
    except ValueError as error:
        raise _unwritable_folder(path.parent, error) from error


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Let one process at a time build a file; the lock of a killed process is released."""
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        raise _unwritable_folder(path.parent, error) from error
    try:
        yield
    finally:
        lock.release()


def _unwritable_folder(folder: Path, error: Exception) -> UserError:
    fault = f"cannot be written ({error}); set FJORD_CACHE to another folder"
    return UserError(f"the cache folder {folder} {fault}")
