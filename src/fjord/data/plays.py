"""The roles of plays and what they say, from any of three layouts, recognised by their files.

roles.jsonl                 one role a line: {"client": ..., "speeches": [[line, ...], ...]}
train/*.json, test/*.json   LEAF's JSON: users, and user_data with x (80 characters) and y (next)
a hub's name, or its files  LEAF's data as rows of character_id, x and y: flwrlabs/shakespeare
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeGuard

from fjord.core.errors import UserError
from fjord.data.characters import join_lines, lines_from_windows
from fjord.data.leaf import leaf_folders, leaf_users
from fjord.data.sources import is_local, local_folder, open_split, split_names

Roles = dict[str, list[str]]
"""What each role says, in order."""
RoleWindow = tuple[str, str, str]
"""A role, some characters of a line, and the next one."""
ALLOWED_LAYOUTS = (
    "roles.jsonl, LEAF's JSON (train/*.json and test/*.json, or *.json), "
    "or the parquet or CSV files of a hub"
)


@dataclass(frozen=True)
class PlayTexts:
    """Roles to train on, those of the source's own test split, and how their lines become texts."""

    train: Roles
    test: Roles | None
    make_texts: Callable[[Iterable[str]], list[str]]


def read_plays(source: str) -> PlayTexts:
    """Read a hub's dataset or a local folder."""
    if not is_local(source):
        return _read_tables(source)
    folder = local_folder(source)
    roles_file = folder / "roles.jsonl"
    if roles_file.is_file():
        return PlayTexts(_read_speeches(roles_file), None, list)
    if any(folder.rglob("*.parquet")) or any(folder.rglob("*.csv")):
        return _read_tables(source)
    parts = []
    for part in leaf_folders(folder):
        if any(part.glob("*.json")):
            parts.append(_restore_lines(_leaf_windows(part)))
    if not parts:
        fault = f"nothing here can be read as plays; the folder may hold {ALLOWED_LAYOUTS}"
        raise UserError(f"source {source}: {fault}")
    test = parts[1] if len(parts) == 2 else None
    return PlayTexts(parts[0], test, join_lines)


def _read_speeches(path: Path) -> Roles:
    """Read one role from each line; the lines of a speech are joined by line breaks."""
    roles: Roles = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            name, speeches = _parse_role(line, where)
            if name in roles:
                raise UserError(f"{where}: the role {name!r} is there twice")
            if not speeches or not all(speeches):
                fault = "has no speeches, or a speech without a line"
                raise UserError(f"{where}: the role {name!r} {fault}")
            roles[name] = ["\n".join(speech) for speech in speeches]
    return roles


def _parse_role(text: bytes, where: str) -> tuple[str, list[list[str]]]:
    """Return the name and the speeches of a role."""
    try:
        role = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: this is not JSON: {error}") from error
    if not isinstance(role, dict):
        raise UserError(f"{where}: a JSON object is needed, not a {type(role).__name__}")
    name = role.get("client")
    speeches = role.get("speeches")
    if not isinstance(name, str) or not _are_speeches(speeches):
        fault = 'a role needs "client" and "speeches", lists of lines of text'
        raise UserError(f"{where}: {fault}")
    return name, speeches


def _are_speeches(value: Any) -> TypeGuard[list[list[str]]]:
    if not isinstance(value, list):
        return False
    for speech in value:
        if not isinstance(speech, list):
            return False
        if not all(isinstance(line, str) for line in speech):
            return False
    return True


def _leaf_windows(folder: Path) -> Iterator[RoleWindow]:
    for path in sorted(folder.glob("*.json")):
        for user in leaf_users(path):
            _check_text(user.where, x=user.x, y=user.y)
            for window, following in zip(user.x, user.y, strict=True):
                yield user.name, window, following


def _read_tables(source: str) -> PlayTexts:
    test = None
    if "test" in split_names(source):
        test = _restore_lines(_table_windows(source, "test"))
    train = _restore_lines(_table_windows(source, "train"))
    return PlayTexts(train, test, join_lines)


def _table_windows(source: str, split: str) -> Iterator[RoleWindow]:
    table = open_split(source, split, ("character_id", "x", "y"))
    for batch in table.iter(batch_size=10_000):
        _check_text(f"{source} ({split})", **batch)
        yield from zip(
            batch["character_id"],
            batch["x"],
            batch["y"],
            strict=True,
        )


def _check_text(where: str, **columns: list[Any]) -> None:
    for column, values in columns.items():
        for value in values:
            if not isinstance(value, str) or not value:
                raise UserError(f"{where}: {column} has {value!r} in it; every value must be text")


def _restore_lines(windows: Iterable[RoleWindow]) -> Roles:
    """Return the lines of each role; windows that follow each other may be of one line."""
    roles: Roles = {}
    for role, own_windows in groupby(windows, itemgetter(0)):
        pairs = ((window, following) for _, window, following in own_windows)
        lines = roles.setdefault(role, [])
        lines += lines_from_windows(pairs)
    return roles
