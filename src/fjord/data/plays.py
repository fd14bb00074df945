"""The roles of plays and what they say, from any of three layouts, told apart by what a folder holds.

roles.jsonl                 one role a line: {"client": ..., "speeches": [[line, ...], ...]}, in play order
train/*.json, test/*.json   LEAF's JSON: users, and user_data with x (80 characters) and y (the next one)
a hub's name, or its files  LEAF's data as rows of character_id, x and y, such as flwrlabs/shakespeare
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.data.characters import join_lines, lines_from_windows
from fjord.data.leaf import leaf_folders, leaf_users
from fjord.data.sources import is_local, local_folder, open_split, split_names

Roles = dict[str, list[str]]
"""What each role says, in order."""
LAYOUTS = "roles.jsonl, LEAF's JSON (train/*.json and test/*.json, or *.json), or the parquet or CSV files of a hub"


@dataclass(frozen=True)
class PlayTexts:
    """Roles to learn from, those held out if the source says so, and how to make texts of what a role says."""

    train: Roles
    test: Roles | None
    texts: Callable[[Iterable[str]], list[str]]


def read_plays(source: str) -> PlayTexts:
    """Read a hub's dataset or a local folder."""
    if not is_local(source):
        return _rows(source)
    folder = local_folder(source)
    if (folder / "roles.jsonl").is_file():
        return PlayTexts(_speeches(folder / "roles.jsonl"), None, list)
    if any(folder.rglob("*.parquet")) or any(folder.rglob("*.csv")):
        return _rows(source)
    parts = [_leaf(part) for part in leaf_folders(folder) if any(part.glob("*.json"))]
    if parts:
        return PlayTexts(parts[0], parts[1] if len(parts) == 2 else None, join_lines)
    raise UserError(
        f"source {source}: nothing here can be read as plays; the folder may hold {LAYOUTS}"
    )


def _speeches(path: Path) -> Roles:
    """Read one role from each line; the lines of a speech are joined by line breaks, as they stand in the text."""
    roles: Roles = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            role = _parsed(line, f"{path}, line {number}")
            name, speeches = role.get("client"), role.get("speeches")
            if not isinstance(name, str) or not _are_speeches(speeches):
                raise UserError(
                    f'{path}, line {number}: a role needs "client" and "speeches", lists of lines of text'
                )
            if not speeches or not all(speeches) or name in roles:
                fault = (
                    "is there twice"
                    if name in roles
                    else "has no speeches, or a speech without a line"
                )
                raise UserError(f"{path}, line {number}: the role {name!r} {fault}")
            roles[name] = ["\n".join(speech) for speech in speeches]
    return roles


def _are_speeches(found: Any) -> bool:
    if not isinstance(found, list) or not all(isinstance(speech, list) for speech in found):
        return False
    return all(isinstance(line, str) for speech in found for line in speech)


def _leaf(folder: Path) -> Roles:
    return _lines(row for path in sorted(folder.glob("*.json")) for row in _leaf_rows(path))


def _leaf_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    for user, x, y, where in leaf_users(path):
        _demand_text(where, x=x, y=y)
        yield from zip([user] * len(x), x, y, strict=True)


def _parsed(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: a JSON object is needed, not a {type(found).__name__}")
    return found


def _rows(source: str) -> PlayTexts:
    test = _lines(_table_rows(source, "test")) if "test" in split_names(source) else None
    return PlayTexts(_lines(_table_rows(source, "train")), test, join_lines)


def _table_rows(source: str, split: str) -> Iterator[tuple[str, str, str]]:
    columns = ("character_id", "x", "y")
    for batch in open_split(source, split, columns).iter(batch_size=10_000):
        _demand_text(f"{source} ({split})", **batch)
        yield from zip(*(batch[column] for column in columns), strict=True)


def _demand_text(where: str, **columns: list[Any]) -> None:
    for column, values in columns.items():
        for value in values:
            if not isinstance(value, str) or not value:
                raise UserError(f"{where}: {column} has {value!r} in it; every value must be text")


def _lines(rows: Iterable[tuple[str, str, str]]) -> Roles:
    roles: Roles = {}
    for role, windows in groupby(rows, itemgetter(0)):
        roles.setdefault(role, []).extend(lines_from_windows((x, y) for _, x, y in windows))
    return roles
