"""Transient load from a file: which client can carry how little in which rounds."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.tables import TABLE_ENCODING
from fjord.core.width import Width, parse_width
from fjord.devices.tiers import DevicePopulation, VaryingDevices

COLUMNS = ("client", "ceiling", "round", "from-round", "to-round")
ALLOWED_COLUMNS = "client, ceiling, and round or from-round and to-round"
ALL_CLIENTS = "*"

NumberedRow = tuple[int, Mapping[str, Any]]
"""A row of a file, with the line on which it begins."""


@dataclass(frozen=True)
class CeilingDrop:
    """A ceiling in some rounds, the last one included; None: from then on."""

    first: int
    last: int | None
    ceiling: Width

    def applies_to(self, round_index: int) -> bool:
        """Say whether a round is one of them."""
        if round_index < self.first:
            return False
        return self.last is None or round_index <= self.last


CeilingDrops = dict[int | None, list[CeilingDrop]]
"""The drops of each client; those of None apply to all clients."""


def traced_devices(
    devices: DevicePopulation,
    path: str | Path,
    num_clients: int,
    smallest: Width,
) -> VaryingDevices:
    """Return devices that are never above the ceiling that a file has for a client and round."""
    drops = read_drops(Path(path), num_clients, smallest)
    shared_drops = drops.get(None, [])

    def lower_ceiling(client_id: int, round_index: int, usual: Width) -> Width:
        ceiling = usual
        for drop in (*shared_drops, *drops.get(client_id, ())):
            if drop.applies_to(round_index):
                ceiling = min(ceiling, drop.ceiling)
        return ceiling

    lowered_ceilings = set()
    for own_drops in drops.values():
        for drop in own_drops:
            lowered_ceilings.add(drop.ceiling)
    return VaryingDevices(devices, lower_ceiling, tuple(sorted(lowered_ceilings)))


def read_drops(path: Path, num_clients: int, smallest: Width) -> CeilingDrops:
    """Read a trace, .csv or .json; an error names the file and the line."""
    read_rows = _csv_rows if path.suffix == ".csv" else _json_rows
    try:
        rows = list(read_rows(path))
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"load {path}: cannot be read: {error}") from error
    drops: CeilingDrops = {}
    for line, row in rows:
        try:
            _check_columns(row)
            client = _parse_client(row, num_clients)
            drop = _parse_drop(row, smallest)
            drops.setdefault(client, []).append(drop)
        except (ValueError, TypeError) as error:
            raise UserError(f"load {path}, line {line}: {error}") from None
    if not drops:
        raise UserError(f"load {path}: holds no rows; needed are {ALLOWED_COLUMNS}")
    return drops


def _csv_rows(path: Path) -> Iterator[NumberedRow]:
    with path.open(newline="", encoding=TABLE_ENCODING) as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        for row in reader:
            cells = {}
            for column, value in row.items():
                if column and value:
                    cells[column] = value.strip()
            yield reader.line_num, cells


def _json_rows(path: Path) -> Iterator[NumberedRow]:
    """Yield the objects of a list, decoded one by one to know the line of each."""
    text = path.read_text(encoding="utf-8")
    _check_json_list(path, text)
    position = _next_element(text, text.index("[") + 1)
    while text[position] != "]":
        row, end = json.JSONDecoder().raw_decode(text, position)
        line = text.count("\n", 0, position) + 1
        if not isinstance(row, dict):
            shown = json.dumps(row)[:40]
            fault = f"{shown} is not an object with {ALLOWED_COLUMNS}"
            raise UserError(f"load {path}, line {line}: {fault}")
        yield line, {key: value for key, value in row.items() if value is not None}
        position = _next_element(text, end)


def _check_json_list(path: Path, text: str) -> None:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"load {path}, line {error.lineno}: is not JSON: {error.msg}") from None
    if not isinstance(content, list):
        raise UserError(f"load {path}: is not a list of objects with {ALLOWED_COLUMNS}")


def _next_element(text: str, position: int) -> int:
    """Return where the next element of a list, or its end, begins."""
    while text[position] in " \t\r\n,":
        position += 1
    return position


def _check_columns(row: Mapping[str, Any]) -> None:
    # A misspelt column must not pass: to_round for to-round would make a drop last for ever.
    for column in row:
        if column not in COLUMNS:
            raise UserError(f"{column!r} is not one of {', '.join(COLUMNS)}")


def _parse_client(row: Mapping[str, Any], num_clients: int) -> int | None:
    """Return a client's number, or None for all clients."""
    if row.get("client") == ALL_CLIENTS:
        return None
    client = _parse_whole(row, "client")
    if client >= num_clients:
        allowed = f"they are 0 to {num_clients - 1}, or {ALL_CLIENTS} for all"
        raise UserError(f"there is no client {client}; {allowed}")
    return client


def _parse_drop(row: Mapping[str, Any], smallest: Width) -> CeilingDrop:
    ceiling = parse_width(str(_require_cell(row, "ceiling")))
    if ceiling < smallest:
        raise UserError(f"ceiling {ceiling} is below the smallest width {smallest}")
    first, last = _parse_rounds(row)
    return CeilingDrop(first, last, ceiling)


def _parse_rounds(row: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the first and the last round; None: no last."""
    if "round" in row:
        for other in ("from-round", "to-round"):
            if other in row:
                raise UserError(f"round and {other} are both given: one of them is enough")
        only_round = _parse_whole(row, "round")
        return only_round, only_round
    first = _parse_whole(row, "from-round")
    if "to-round" not in row:
        return first, None
    last = _parse_whole(row, "to-round")
    if last < first:
        raise UserError(f"to-round {last} is before from-round {first}")
    return first, last


def _parse_whole(row: Mapping[str, Any], name: str) -> int:
    value = _require_cell(row, name)
    text = str(value)
    if isinstance(value, bool | float) or not text.isascii() or not text.isdigit():
        raise UserError(f"{name} {value!r} is not a whole number of at least 0")
    return int(value)


def _require_cell(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise UserError(f"{name} is missing; needed are {ALLOWED_COLUMNS}")
    return row[name]
