"""Where data comes from: a hub's name or a local folder, read through `datasets` by one code path."""

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

RECIPES = {
    "cifar10": "cifar10",
    "femnist": "femnist",
    "femnist_digits": "femnist-digits",
    "emnist_byclass": "emnist-skewed",
    "shakespeare": "shakespeare",
}
"""The folders that FJORD_DATA may hold, and the recipe that reads each."""


def find_source(source: str | None, name: str, hub: str | None) -> str:
    """Return the given source, else the folder `name` in FJORD_DATA if that is set, else the hub's name."""
    if source is not None:
        if not source.strip():
            raise UserError("source is empty; give a folder or a hub's name, or leave it out")
        return source
    if root := os.environ.get("FJORD_DATA"):
        return _folder_in(Path(root).expanduser(), name)
    if hub is None:
        raise UserError(
            f"{name} is on no hub: give its folder, or set FJORD_DATA to the folder that has {name} in it"
        )
    return hub


def _folder_in(root: Path, name: str) -> str:
    if (root / name).is_dir():
        return str(root / name)
    if not root.is_dir():
        raise UserError(f"FJORD_DATA={root}: there is no such folder")
    there = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    held = [f"{n} (recipe {RECIPES[n]})" if n in RECIPES else n for n in there]
    raise UserError(
        f"{root / name}: there is no such folder; FJORD_DATA={root} holds {', '.join(held) or 'none'}"
    )


def is_local(source: str) -> bool:
    """Say whether a source is a folder: it exists, or it cannot be a hub's name (name, or owner/name)."""
    return Path(source).expanduser().exists() or not re.fullmatch(
        r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?", source
    )


def local_folder(source: str) -> Path:
    """Return a local source as an absolute path, or say what is wrong with it."""
    path = Path(source).expanduser().resolve()
    if not path.exists():
        raise UserError(f"source {source}: there is no such folder")
    if not path.is_dir():
        raise UserError(f"source {source}: this is a file; give the folder it is in")
    return path


def source_fingerprint(source: str) -> dict[str, Any]:
    """Return what tells one state of a source from another: its files' sizes and times, or a hub's name@revision."""
    if not is_local(source):
        return {"source": source}
    folder = local_folder(source)
    files = sorted(
        f for f in folder.rglob("*") if f.is_file() and not _hidden(f.relative_to(folder))
    )
    found = [(str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return {"source": str(folder), "files": found}


def _hidden(path: Path) -> bool:
    return any(
        part.startswith(".") for part in path.parts
    )  # what hubs and git keep beside the data


def import_library(name: str) -> Any:
    """Import a library of the optional extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"reading datasets needs {name} ({error}): {install_hint('data')}"
        ) from error


def split_names(source: str) -> list[str]:
    """Return the names of a source's splits."""
    with _reading(source) as (datasets, place):
        builder = datasets.load_dataset_builder(**place)
        return [str(name) for name in builder.info.splits or builder.config.data_files]


def open_split(source: str, split: str, columns: Sequence[str]) -> Any:
    """Return these columns of one split, a `datasets.Dataset`.

    A hub's data stays in the hub's own cache. A folder's is unpacked into a temporary folder, which is gone when
    this returns: the data is mapped, and its disk space is free once nobody reads it.
    """
    there = split_names(source)
    if split not in there:
        raise UserError(
            f"source {source}: there is no split {split!r}; its splits are {', '.join(there)}"
        )
    with _reading(source) as (datasets, place):
        found = datasets.load_dataset(**place, split=split)
    missing = [column for column in columns if column not in found.column_names]
    if missing:
        names = ", ".join(found.column_names)
        raise UserError(
            f"source {source} ({split}): there is no column {missing[0]!r}; its columns are {names}"
        )
    if not len(found):
        raise UserError(f"source {source} ({split}): there are no rows in it")
    return found.select_columns(list(columns))


@contextmanager
def _reading(source: str) -> Iterator[tuple[Any, dict[str, str | None]]]:
    """Give `datasets` and what it takes for a source; its errors are said in terms of the source."""
    datasets, errors, arrow = (
        import_library("datasets"),
        import_library("datasets.exceptions"),
        import_library("pyarrow"),
    )
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it logs stands in the error
    with tempfile.TemporaryDirectory(prefix="fjord-", ignore_cleanup_errors=True) as unpacked:
        try:
            yield datasets, _place(source, unpacked)
        except (errors.DatasetGenerationError, arrow.ArrowInvalid) as error:
            raise UserError(_unreadable(source, error)) from error
        except (OSError, errors.DatasetsError) as error:
            hint = (
                ""
                if is_local(source)
                else "no such folder here, and the hub does not give it (is there a network?): "
            )
            raise UserError(f"source {source}: {hint}{error}") from error


def _place(source: str, unpacked: str) -> dict[str, str | None]:
    if is_local(source):
        return {"path": str(local_folder(source)), "cache_dir": unpacked}
    name, _, revision = source.partition("@")
    return {"path": name, "revision": revision or None}


def _unreadable(source: str, error: Exception) -> str:
    reason = error.__cause__ or error
    if isinstance(reason, OSError) and reason.errno == errno.ENOSPC:
        return f"source {source}: there is no space to unpack it in {tempfile.gettempdir()}; TMPDIR names another folder"
    columns: dict[Path, list[str]] = {}
    for file in sorted(local_folder(source).rglob("*.parquet")) if is_local(source) else ():
        try:
            table = import_library("pyarrow.parquet").read_table(file)
        except (OSError, import_library("pyarrow").ArrowException) as fault:
            return f"{file}: this parquet file cannot be read, it may be damaged or cut short ({fault})"
        if not len(table):
            return f"{file}: there are no rows in it"
        columns[file] = [f"{column.name} ({column.type})" for column in table.schema]
    for file, own in columns.items():
        if own != (first := columns[next(iter(columns))]):
            return f"{file}: its columns are {', '.join(own)}; those of other files are {', '.join(first)}"
    return f"source {source}: cannot be read ({reason})"
