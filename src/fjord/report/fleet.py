"""The picture of a fleet: which device can run what, and how many each ceiling excludes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.report.figures import MISSING

KINDS = {
    "yes": ("#009E73", "can run it"),
    "deadline": ("#E69F00", "too slow"),
    "memory": ("#56B4E9", "too little memory"),
    "both": ("#999999", "too slow and too little memory"),
    "failed": ("#444444", "failed when it was tried"),
}
MAX_NAMED = 40
"""With more kinds of devices their names would not be legible."""


@dataclass(frozen=True)
class DeviceRow:
    """A kind of device and what it can run."""

    name: str
    count: int
    stands: tuple[str, ...]
    """For each width one of the words of KINDS."""
    ceiling: Width | None


def draw_fleet(
    path: Path,
    widths: Sequence[Width],
    rows: Sequence[DeviceRow],
    left_out: Sequence[int],
    tiers: Sequence[Width],
    title: str,
) -> Path:
    """Draw a fleet and return the picture's path."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(MISSING, field="plot") from None
    settings: Any = {"text.parse_math": False, "font.size": 9}
    height = 5.0
    if len(rows) <= MAX_NAMED:
        height = max(3.8, 2.2 + 0.28 * len(rows))
    weakest_first = sorted(rows, key=lambda row: row.stands.count("yes"))
    total = sum(row.count for row in rows)
    with rc_context(settings):
        figure = Figure(figsize=(10.5, height), layout="constrained")
        grid, bars = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_grid(grid, widths, weakest_first)
        _draw_excluded(bars, widths, left_out, total, tiers)
        figure.suptitle(title, fontsize=10)
        try:
            figure.savefig(path, dpi=140)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot be written: {error}", field="plot", value=path) from error
    return path


def _draw_grid(panel: Any, widths: Sequence[Width], rows: Sequence[DeviceRow]) -> None:
    """Draw one coloured row for each kind of device."""
    from matplotlib.colors import ListedColormap

    words = list(KINDS)
    colours = [colour for colour, _ in KINDS.values()]
    cells = []
    for row in rows:
        numbers = map(words.index, row.stands)
        cells.append(list(numbers))
    look: dict[str, Any] = {
        "cmap": ListedColormap(colours),
        "vmin": -0.5,
        "vmax": len(KINDS) - 0.5,
    }
    if len(rows) <= MAX_NAMED:
        look["edgecolors"] = "white"  # lines between devices
        look["linewidth"] = 1
    panel.pcolormesh(cells, **look)
    centres = _cell_centres(len(widths))
    panel.set_xticks(centres, _width_names(widths))
    if len(rows) <= MAX_NAMED:
        _name_rows(panel, widths, rows)
    else:
        panel.set_yticks([], [])
        panel.set_ylabel(f"{len(rows)} kinds of devices")
    panel.tick_params(length=0)
    panel.set_xlabel("width")
    panel.set_title("who can run what", fontsize=9)
    _add_legend(panel, rows)


def _cell_centres(count: int) -> list[float]:
    return [i + 0.5 for i in range(count)]


def _width_names(widths: Sequence[Width]) -> list[str]:
    return [str(width) for width in widths]


def _name_rows(panel: Any, widths: Sequence[Width], rows: Sequence[DeviceRow]) -> None:
    names = []
    centres = _cell_centres(len(rows))
    for row, y in zip(rows, centres, strict=True):
        name = row.name
        if row.count > 1:
            name += f" ({row.count})"
        names.append(name)
        if row.ceiling is not None:
            x = widths.index(row.ceiling) + 0.5
            panel.text(x, y, "ceiling", ha="center", va="center", color="white")
    panel.set_yticks(centres, names)


def _add_legend(panel: Any, rows: Sequence[DeviceRow]) -> None:
    from matplotlib.patches import Patch

    used: set[str] = set()
    for row in rows:
        used.update(row.stands)
    handles = []
    for word, (colour, label) in KINDS.items():
        if word in used:
            handles.append(Patch(color=colour, label=label))
    panel.figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles),
        frameon=False,
    )


def _draw_excluded(
    panel: Any,
    widths: Sequence[Width],
    counts: Sequence[int],
    total: int,
    tiers: Sequence[Width],
) -> None:
    """Draw how many devices each ceiling excludes."""
    colours = []
    for width in widths:
        if width in tiers:
            colours.append("#0072B2")
        else:
            colours.append("#bbbbbb")
    places = range(len(widths))
    panel.bar(places, counts, color=colours)
    for i, count in enumerate(counts):
        share = count / total
        panel.annotate(
            f"{count}\n{share:.0%}",
            xy=(i, count),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
        )
    panel.set_xticks(places, _width_names(widths))
    highest = max(1, *counts)
    panel.set_ylim(0, highest * 1.2)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel("ceiling (blue: a tier)")
    panel.set_title(f"devices left out if everyone had to carry it, of {total}", fontsize=9)
