"""Tables that people write by hand or save from a spreadsheet."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE_ENCODING = "utf-8-sig"
"""UTF-8, with or without the byte order mark that spreadsheets write first."""


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each by the names of the columns."""
    with path.open(newline="", encoding=TABLE_ENCODING) as file:
        return list(csv.DictReader(file))


def filled_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a row that are not empty.

    >>> filled_cells({"name": "phone", "count": "", "memory": None})
    {'name': 'phone'}
    """
    return {column: value for column, value in row.items() if value not in (None, "")}
