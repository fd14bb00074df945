"""Render HTML pages from templates; everything put into a page is escaped unless marked as safe."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).with_name("templates")


def render_template(name: str, *folders: Path, **values: Any) -> str:
    """Render a template of this package, or of another folder that may build on those here."""
    return _make_environment(*folders).get_template(name).render(**values)


@cache
def _make_environment(*folders: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
