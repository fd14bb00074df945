"""Data decoded once: the tensors of a build in one file, mapped into memory and checked by a digest when opened.

The folder is FJORD_CACHE, else XDG_CACHE_HOME/fjord, else ~/.cache/fjord; it may be deleted at any time.
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
    if own := os.environ.get("FJORD_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fjord"


class CachedTensors(dict[str, Tensor]):
    """Tensors by name, and the digest of them all."""

    digest = ""


def load_cached(
    name: str, key: Mapping[str, Any], build: Callable[[], dict[str, Tensor]]
) -> CachedTensors:
    """Return the tensors that `build` makes, from the file of an earlier call with an equal key if there is one.

    The key is plain data that says everything the tensors depend on. The tensors are mapped from the file, and
    shared by all processes that hold them. A file that is not whole is thrown away with a warning and built anew.
    """
    text = json.dumps(key, sort_keys=True)
    path = (
        cache_folder()
        / f"{name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.safetensors"
    )
    with suppress(FileNotFoundError, _Corrupt):
        return _open(path, text)  # without the lock, so that a finished cache may be read-only
    with _locked(path):
        try:
            return _open(path, text)  # another process built it while this one waited
        except FileNotFoundError:
            pass
        except _Corrupt as error:
            warnings.warn(f"{error}; it is thrown away and built anew", stacklevel=2)
        _store(path, build(), text)
        return _open(path, text)


class _Corrupt(Exception):
    """A file is not what was written."""


def _open(path: Path, key: str) -> CachedTensors:
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        tensors, metadata = read_tensors(path)
    except ValueError as error:
        raise _Corrupt(str(error)) from error
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error}); FJORD_CACHE names another folder"
        ) from error
    found = CachedTensors(tensors)
    found.digest = file_digest(tensors)
    if metadata.get("key") != key or metadata.get("digest") != found.digest:
        raise _Corrupt(f"{path}: its content does not fit its digest")
    return found


def file_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names, types, shapes and bytes.

    SHA-256, because processors have instructions for it: 1.8 GB a second, against 0.9 of BLAKE2b. CRC-32 is
    faster still (4.2), but reading the bytes from a disk takes longer than either.
    """
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _store(path: Path, tensors: dict[str, Tensor], key: str) -> None:
    for draft in path.parent.glob(f".{path.name}.*.tmp"):
        draft.unlink(missing_ok=True)  # of a process that was killed: whoever writes holds the lock
    try:
        write_tensors(path, tensors, {"key": key, "digest": file_digest(tensors)})
    except ValueError as error:
        raise _unwritable(path.parent, error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time build a file; the lock of a killed process is free."""
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        raise _unwritable(path.parent, error) from error
    try:
        yield
    finally:
        lock.release()


def _unwritable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"the cache folder {folder} cannot be written ({error}); FJORD_CACHE names another folder"
    )
