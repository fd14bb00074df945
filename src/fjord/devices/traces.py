"""Load as it was recorded or is assumed: which client can carry how little in which rounds, read from a file."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.width import Width, parse_width
from fjord.devices.tiers import DevicePopulation, VaryingDevices

ALLOWED = "client, ceiling, and round or from-round and to-round"
COLUMNS = ("client", "ceiling", "round", "from-round", "to-round")
EVERYBODY = "*"


@dataclass(frozen=True)
class CeilingDrop:
    """A ceiling in some rounds, the last one included; None: from then on."""

    first: int
    last: int | None
    ceiling: Width

    def counts(self, round_index: int) -> bool:
        """Say whether a round is one of them."""
        return self.first <= round_index and (self.last is None or round_index <= self.last)


def traced_devices(
    devices: DevicePopulation, path: str | Path, num_clients: int, smallest: Width
) -> VaryingDevices:
    """Return the same devices, but no client above the ceiling that a file gives it for a round."""
    drops = read_drops(Path(path), num_clients, smallest)
    everybody = drops.get(None, [])

    def lowered(client_id: int, round_index: int, usual: Width) -> Width:
        mine = [d.ceiling for d in (*everybody, *drops.get(client_id, ())) if d.counts(round_index)]
        return min([usual, *mine])

    return VaryingDevices(
        devices, lowered, tuple(sorted({drop.ceiling for mine in drops.values() for drop in mine}))
    )


def read_drops(
    path: Path, num_clients: int, smallest: Width
) -> dict[int | None, list[CeilingDrop]]:
    """Read a trace, .csv or .json; None stands for all clients. What is wrong with it is named by file and line."""
    found: dict[int | None, list[CeilingDrop]] = {}
    try:
        rows = list(_csv_rows(path) if path.suffix == ".csv" else _json_rows(path))
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"load {path}: cannot be read: {error}") from error
    for line, row in rows:
        try:
            _demand_known(row)
            client = _client(row, num_clients)
            found.setdefault(client, []).append(_drop(row, smallest))
        except (ValueError, TypeError) as error:
            raise UserError(f"load {path}, line {line}: {error}") from None
    if not found:
        raise UserError(f"load {path}: holds no rows; needed are {ALLOWED}")
    return found


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(
        newline="", encoding="utf-8-sig"
    ) as file:  # spreadsheets write a mark at the start
        reader = csv.DictReader(file, skipinitialspace=True)
        for row in reader:
            yield (
                reader.line_num,
                {key: value.strip() for key, value in row.items() if key and value},
            )


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a list, each with the line on which it begins."""
    text = path.read_text(encoding="utf-8")
    try:
        if not isinstance(json.loads(text), list):
            raise UserError(f"load {path}: is not a list of objects with {ALLOWED}")
    except json.JSONDecodeError as error:
        raise UserError(f"load {path}, line {error.lineno}: is not JSON: {error.msg}") from None
    at = _next(text, text.index("[") + 1)
    while text[at] != "]":
        row, end = json.JSONDecoder().raw_decode(text, at)
        line = text.count("\n", 0, at) + 1
        if not isinstance(row, dict):
            raise UserError(
                f"load {path}, line {line}: {json.dumps(row)[:40]} is not an object with {ALLOWED}"
            )
        yield line, {key: value for key, value in row.items() if value is not None}
        at = _next(text, end)


def _next(text: str, at: int) -> int:
    """Return where the next element of a list, or its end, begins."""
    while text[at] in " \t\r\n,":
        at += 1
    return at


def _demand_known(row: Mapping[str, Any]) -> None:
    unknown = [key for key in row if key not in COLUMNS]
    if unknown:  # to_round for to-round would make a drop last for ever
        raise UserError(f"{unknown[0]!r} is not one of {', '.join(COLUMNS)}")


def _client(row: Mapping[str, Any], num_clients: int) -> int | None:
    if row.get("client") == EVERYBODY:
        return None
    client = _whole(row, "client")
    if client >= num_clients:
        raise UserError(
            f"there is no client {client}; they are 0 to {num_clients - 1}, or {EVERYBODY} for all"
        )
    return client


def _drop(row: Mapping[str, Any], smallest: Width) -> CeilingDrop:
    ceiling = parse_width(str(_given(row, "ceiling")))
    if ceiling < smallest:
        raise UserError(f"ceiling {ceiling} is below the smallest width {smallest}")
    if "round" in row:
        if odd := row.keys() & {"from-round", "to-round"}:
            raise UserError(f"round and {min(odd)} are both given: one of them is enough")
        only = _whole(row, "round")
        return CeilingDrop(only, only, ceiling)
    first, last = _whole(row, "from-round"), _whole(row, "to-round") if "to-round" in row else None
    if last is not None and last < first:
        raise UserError(f"to-round {last} is before from-round {first}")
    return CeilingDrop(first, last, ceiling)


def _whole(row: Mapping[str, Any], name: str) -> int:
    value = _given(row, name)
    if isinstance(value, bool | float) or not str(value).isascii() or not str(value).isdigit():
        raise UserError(f"{name} {value!r} is not a whole number of at least 0")
    return int(value)


def _given(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise UserError(f"{name} is missing; needed are {ALLOWED}")
    return row[name]
