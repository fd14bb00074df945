"""Tables that people write by hand or save from a spreadsheet."""

import csv
from pathlib import Path


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by the names of its columns."""
    with path.open(
        newline="", encoding="utf-8-sig"
    ) as file:  # spreadsheets write a mark at the start
        return list(csv.DictReader(file))
