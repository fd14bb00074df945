"""Tables that people write by hand or save from a spreadsheet."""

import csv
from pathlib import Path

TABLE_ENCODING = "utf-8-sig"
"""UTF-8, with or without the byte order mark that spreadsheets write first."""


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each by the names of the columns."""
    with path.open(newline="", encoding=TABLE_ENCODING) as file:
        return list(csv.DictReader(file))
