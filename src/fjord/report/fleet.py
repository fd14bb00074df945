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
    with rc_context(settings):
        figure = Figure(figsize=(10.5, height), layout="constrained")
        grid, bars = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_grid(grid, widths, sorted(rows, key=lambda row: row.stands.count("yes")))
        _draw_excluded(bars, widths, left_out, sum(row.count for row in rows), tiers)
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
    cells = []
    for row in rows:
        cells.append([words.index(word) for word in row.stands])
    colours = ListedColormap([colour for colour, _ in KINDS.values()])
    look: dict[str, Any] = {"cmap": colours, "vmin": -0.5, "vmax": len(words) - 0.5}
    if len(rows) <= MAX_NAMED:
        look |= {"edgecolors": "white", "linewidth": 1}  # lines between devices
    panel.pcolormesh(cells, **look)
    panel.set_xticks([i + 0.5 for i in range(len(widths))], [str(width) for width in widths])
    if len(rows) <= MAX_NAMED:
        _name_rows(panel, widths, rows)
    else:
        panel.set_yticks([], [])
        panel.set_ylabel(f"{len(rows)} kinds of devices")
    panel.tick_params(length=0)
    panel.set_xlabel("width")
    panel.set_title("who can run what", fontsize=9)
    _add_legend(panel, rows)


def _name_rows(panel: Any, widths: Sequence[Width], rows: Sequence[DeviceRow]) -> None:
    names = []
    for i, row in enumerate(rows):
        names.append(f"{row.name} ({row.count})" if row.count > 1 else row.name)
        if row.ceiling is not None:
            x = widths.index(row.ceiling) + 0.5
            panel.text(x, i + 0.5, "ceiling", ha="center", va="center", color="white")
    panel.set_yticks([i + 0.5 for i in range(len(rows))], names)


def _add_legend(panel: Any, rows: Sequence[DeviceRow]) -> None:
    from matplotlib.patches import Patch

    handles = []
    for word, (colour, label) in KINDS.items():
        if any(word in row.stands for row in rows):
            handles.append(Patch(color=colour, label=label))
    panel.figure.legend(
        handles=handles, loc="outside lower left", ncols=len(handles), frameon=False
    )


def _draw_excluded(
    panel: Any, widths: Sequence[Width], counts: Sequence[int], total: int, tiers: Sequence[Width]
) -> None:
    """Draw how many devices each ceiling excludes."""
    colours = ["#0072B2" if width in tiers else "#bbbbbb" for width in widths]
    panel.bar(range(len(widths)), counts, color=colours)
    for i, count in enumerate(counts):
        text = f"{count}\n{count / total:.0%}"
        panel.annotate(text, (i, count), (0, 3), textcoords="offset points", ha="center")
    panel.set_xticks(range(len(widths)), [str(width) for width in widths])
    panel.set_ylim(0, max(1, *counts) * 1.2)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel("ceiling (blue: a tier)")
    panel.set_title(f"devices left out if everyone had to carry it, of {total}", fontsize=9)
