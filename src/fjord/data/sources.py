"""Where data comes from: a hub's name or a local folder, both read through `datasets`."""

import errno
import importlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.extras import install_hint

FOLDER_RECIPES = {
    "cifar10": "cifar10",
    "femnist": "femnist",
    "femnist_digits": "femnist-digits",
    "emnist_byclass": "emnist-skewed",
    "shakespeare": "shakespeare",
}
"""The folders that FJORD_DATA may hold, and the recipe that reads each."""
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?")


def find_source(source: str | None, name: str, hub: str | None) -> str:
    """Return the given source, else the folder `name` in FJORD_DATA, else the hub's name."""
    if source is not None:
        if not source.strip():
            raise UserError("source is empty; give a folder or a hub's name, or leave it out")
        return source
    root = os.environ.get("FJORD_DATA")
    if root:
        return _find_folder(Path(root).expanduser(), name)
    if hub is None:
        hint = f"give its folder, or set FJORD_DATA to the folder that has {name} in it"
        raise UserError(f"{name} is on no hub: {hint}")
    return hub


def _find_folder(root: Path, name: str) -> str:
    folder = root / name
    if folder.is_dir():
        return str(folder)
    if not root.is_dir():
        raise UserError(f"FJORD_DATA={root}: there is no such folder")
    present = []
    for entry in sorted(root.iterdir()):
        if entry.is_dir():
            present.append(_describe_folder(entry.name))
    listed = ", ".join(present) or "none"
    raise UserError(f"{folder}: there is no such folder; FJORD_DATA={root} holds {listed}")


def _describe_folder(name: str) -> str:
    if name in FOLDER_RECIPES:
        return f"{name} (recipe {FOLDER_RECIPES[name]})"
    return name


def is_local(source: str) -> bool:
    """Say whether a source is a folder: it exists, or it cannot be a hub's name (owner/name)."""
    if Path(source).expanduser().exists():
        return True
    return HUB_NAME.fullmatch(source) is None


def local_folder(source: str) -> Path:
    """Return a local source as an absolute path, or say what is wrong with it."""
    path = Path(source).expanduser().resolve()
    if not path.exists():
        raise UserError(f"source {source}: there is no such folder")
    if not path.is_dir():
        raise UserError(f"source {source}: this is a file; give the folder it is in")
    return path


def source_fingerprint(source: str) -> dict[str, Any]:
    """Return what tells one state of a source from another.

    That is the sizes and times of a folder's files, or a hub's name@revision.
    """
    if not is_local(source):
        return {"source": source}
    folder = local_folder(source)
    files = []
    for file in sorted(folder.rglob("*")):
        relative_path = file.relative_to(folder)
        if file.is_file() and not _is_hidden(relative_path):
            status = file.stat()
            files.append((str(relative_path), status.st_size, status.st_mtime_ns))
    return {"source": str(folder), "files": files}


def _is_hidden(path: Path) -> bool:
    """Say whether a file is one that hubs and git keep beside the data."""
    return any(part.startswith(".") for part in path.parts)


def import_library(name: str) -> Any:
    """Import a library of the optional extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = install_hint("data")
        raise UserError(f"reading datasets needs {name} ({error}): {hint}") from error


def split_names(source: str) -> list[str]:
    """Return the names of a source's splits."""
    with _read_source(source) as (datasets, place):
        builder = datasets.load_dataset_builder(**place)
        splits = builder.info.splits or builder.config.data_files
        return [str(name) for name in splits]


def open_split(source: str, split: str, columns: Sequence[str]) -> Any:
    """Return these columns of one split, a `datasets.Dataset`.

    A hub's data stays in the hub's own cache. A folder's is unpacked into a temporary folder, which
    is deleted when this returns: the data is mapped, and its disk space is free once nobody reads
    it.
    """
    splits = split_names(source)
    if split not in splits:
        listed = ", ".join(splits)
        fault = f"there is no split {split!r}; its splits are {listed}"
        raise UserError(f"source {source}: {fault}")
    with _read_source(source) as (datasets, place):
        table = datasets.load_dataset(**place, split=split)
    where = f"source {source} ({split})"
    for column in columns:
        if column not in table.column_names:
            listed = ", ".join(table.column_names)
            fault = f"there is no column {column!r}; its columns are {listed}"
            raise UserError(f"{where}: {fault}")
    if not len(table):
        raise UserError(f"{where}: there are no rows in it")
    return table.select_columns(list(columns))


@contextmanager
def _read_source(source: str) -> Iterator[tuple[Any, dict[str, str | None]]]:
    """Yield `datasets` and its arguments for a source; its errors are about the source."""
    datasets = import_library("datasets")
    errors = import_library("datasets.exceptions")
    arrow = import_library("pyarrow")
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it logs is in the error
    with tempfile.TemporaryDirectory(prefix="fjord-", ignore_cleanup_errors=True) as unpacked:
        try:
            yield datasets, _dataset_arguments(source, unpacked)
        except (errors.DatasetGenerationError, arrow.ArrowInvalid) as error:
            raise UserError(_unreadable_message(source, error)) from error
        except (OSError, errors.DatasetsError) as error:
            hint = ""
            if not is_local(source):
                hint = "no such folder here, and the hub does not give it (is there a network?): "
            raise UserError(f"source {source}: {hint}{error}") from error


def _dataset_arguments(source: str, unpacked: str) -> dict[str, str | None]:
    if is_local(source):
        return {"path": str(local_folder(source)), "cache_dir": unpacked}
    name, _, revision = source.partition("@")
    return {"path": name, "revision": revision or None}


def _unreadable_message(source: str, error: Exception) -> str:
    """Return why a source cannot be read: the first bad file, where there is one."""
    reason = error.__cause__ or error
    if isinstance(reason, OSError) and reason.errno == errno.ENOSPC:
        folder = tempfile.gettempdir()
        fault = f"there is no space to unpack it in {folder}; set TMPDIR to another folder"
        return f"source {source}: {fault}"
    fault = ""
    if is_local(source):
        fault = _find_bad_file(local_folder(source))
    return fault or f"source {source}: cannot be read ({reason})"


def _find_bad_file(folder: Path) -> str:
    """Return what is wrong with the parquet files of a folder, or nothing."""
    all_columns: dict[Path, list[str]] = {}
    for file in sorted(folder.rglob("*.parquet")):
        try:
            table = import_library("pyarrow.parquet").read_table(file)
        except (OSError, import_library("pyarrow").ArrowException) as error:
            fault = "this parquet file cannot be read, it may be damaged or truncated"
            return f"{file}: {fault} ({error})"
        if not len(table):
            return f"{file}: there are no rows in it"
        columns = [f"{column.name} ({column.type})" for column in table.schema]
        all_columns[file] = columns
    first_columns = next(iter(all_columns.values()), [])
    for file, columns in all_columns.items():
        if columns != first_columns:
            listed = ", ".join(columns)
            others = ", ".join(first_columns)
            return f"{file}: its columns are {listed}; those of other files are {others}"
    return ""
