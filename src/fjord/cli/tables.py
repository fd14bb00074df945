"""How commands print: tables, lines and JSON, each in one place."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fjord.core.errors import UserError

out = Console(highlight=False)
STANDARD_OUTPUT = "-"


def print_table(
    columns: Iterable[str | Column], rows: Iterable[Iterable[str]], title: str = ""
) -> None:
    """Print rows of text under their columns, given by name or with a layout."""
    table = Table(*columns, title=title or None)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_line(text: str) -> None:
    """Print one line as it is: without markup, and wrapped by the terminal alone."""
    out.print(text, markup=False, soft_wrap=True)


def print_text(text: str) -> None:
    """Print a text of several lines that ends with a newline of its own."""
    out.print(text, markup=False, soft_wrap=True, end="")


def format_ratio(value: float, full: float) -> str:
    """Return a share of the value at full width.

    >>> format_ratio(1.0, 4.0)
    '0.25'
    """
    return f"{value / full:.2f}"


def format_milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds, without their unit.

    >>> format_milliseconds(0.00234)
    '2.34'
    """
    return f"{seconds * 1e3:.2f}"


def write_json(data: Mapping[str, Any], destination: str, *, field: str) -> bool:
    """Write data as JSON to a file, or print it if the destination is `-`.

    Return whether a file was written. `field` names the parameter that an error speaks of.
    """
    text = json.dumps(data, indent=1)
    if destination == STANDARD_OUTPUT:
        print(text)
        return False
    try:
        Path(destination).write_text(text + "\n")
    except OSError as error:
        message = f"cannot be written: {error}"
        raise UserError(message, field=field, value=destination) from error
    return True
