"""The picture of a fleet: who can run what, and how many devices each ceiling leaves out."""

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
NAMED = 40
"""Beyond so many kinds of devices their names would not be legible."""


@dataclass(frozen=True)
class DeviceRow:
    """A kind of device: how many there are, for each width one of the words of KINDS, and the ceiling it gets."""

    name: str
    count: int
    stands: tuple[str, ...]
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
        raise UserError(MISSING.replace("the page", "--plot")) from None
    settings: Any = {"text.parse_math": False, "font.size": 9}
    with rc_context(settings):
        height = 2.2 + 0.28 * len(rows) if len(rows) <= NAMED else 5.0
        figure = Figure(figsize=(10.5, max(3.8, height)), layout="constrained")
        who, how_many = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _who(who, widths, sorted(rows, key=lambda row: row.stands.count("yes")))
        _left_out(how_many, widths, left_out, sum(row.count for row in rows), tiers)
        figure.suptitle(title, fontsize=10)
        try:
            figure.savefig(path, dpi=140)
        except (OSError, ValueError) as error:
            raise UserError(f"--plot {path}: cannot be written: {error}") from error
    return path


def _who(panel: Any, widths: Sequence[Width], rows: Sequence[DeviceRow]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    words = list(KINDS)
    grid = [[words.index(word) for word in row.stands] for row in rows]
    colours = ListedColormap([colour for colour, _ in KINDS.values()])
    panel.pcolormesh(grid, cmap=colours, vmin=-0.5, vmax=len(words) - 0.5, **_lines(len(rows)))
    panel.set_xticks([i + 0.5 for i in range(len(widths))], [str(width) for width in widths])
    named = [f"{row.name} ({row.count})" if row.count > 1 else row.name for row in rows]
    panel.set_yticks(
        *(([i + 0.5 for i in range(len(rows))], named) if len(rows) <= NAMED else ([], []))
    )
    for i, row in enumerate(rows if len(rows) <= NAMED else ()):
        if row.ceiling is not None:
            panel.text(
                widths.index(row.ceiling) + 0.5,
                i + 0.5,
                "ceiling",
                ha="center",
                va="center",
                color="white",
            )
    panel.tick_params(length=0)
    if len(rows) > NAMED:
        panel.set_ylabel(f"{len(rows)} kinds of devices")
    panel.set_xlabel("width")
    panel.set_title("who can run what", fontsize=9)
    seen = [word for word in words if any(word in row.stands for row in rows)]
    handles = [Patch(color=KINDS[word][0], label=KINDS[word][1]) for word in seen]
    panel.figure.legend(handles=handles, loc="outside lower left", ncols=len(seen), frameon=False)


def _lines(num_rows: int) -> dict[str, Any]:
    """Return white lines between devices, where they are not too many."""
    return {"edgecolors": "white", "linewidth": 1} if num_rows <= NAMED else {}


def _left_out(
    panel: Any, widths: Sequence[Width], counts: Sequence[int], total: int, tiers: Sequence[Width]
) -> None:
    colours = ["#0072B2" if width in tiers else "#bbbbbb" for width in widths]
    panel.bar(range(len(widths)), counts, color=colours)
    for i, count in enumerate(counts):
        panel.annotate(
            f"{count}\n{count / total:.0%}",
            (i, count),
            (0, 3),
            textcoords="offset points",
            ha="center",
        )
    panel.set_xticks(range(len(widths)), [str(width) for width in widths])
    panel.set_ylim(0, max(1, *counts) * 1.2)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel("ceiling (blue: a tier)")
    panel.set_title(f"devices left out if everyone had to carry it, of {total}", fontsize=9)
