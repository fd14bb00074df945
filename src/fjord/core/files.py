"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def draft_path(path: Path) -> Path:
    """Return the hidden file beside `path` that this process writes first."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a draft to write to, which replaces `path` in one step when the block ends.

    The draft is flushed to disk first: after a power cut the name never stands for an empty file.
    If the block raises, `path` stays as it was, and no draft is left.
    """
    draft = draft_path(path)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    with atomic_write(path) as draft:
        draft.write_text(text)
