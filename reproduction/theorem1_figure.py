"""The figure of Theorem 1: distance to the best rank-k approximation against steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fjord.experiments.runs import RunFolder

LIMIT = 0.05
"""The distance of the dotted line."""


def draw_theorem1(runs: Sequence[RunFolder], path: Path) -> Path:
    """Draw one panel per run and return the picture's path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(runs), 4.2), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for panel, run in zip(panels, runs, strict=True):
        _draw_run(panel, run)
    panels[0].set_ylabel(r"$\|F_k - A_k\| \,/\, \|A_k\|$ (Frobenius)")
    figure.suptitle("Ordered Dropout on a linear network recovers the SVD (Theorem 1)", fontsize=11)
    origin = f"seed {runs[0].config['seed']}, commit {runs[0].env['commit']}"
    figure.supxlabel(origin, fontsize=7, color="grey")
    figure.savefig(path, dpi=140)
    return path


def _draw_run(panel: Any, run: RunFolder) -> None:
    config = run.config
    rows = run.metrics()
    steps = [row["step"] for row in rows]
    for k in range(config["size"]):
        distances = [row["distance"][k] for row in rows]
        panel.semilogy(steps, distances, label=f"k = {k + 1} ({distances[-1]:.1%})")
    schedule = "constant step (the paper's setting)"
    if config["decay"]:
        schedule = "decaying step"
    panel.set_title(f"{schedule}, lr {config['lr']}", fontsize=10)
    panel.set_xlabel("SGD steps")
    panel.axhline(LIMIT, color="grey", linewidth=0.8, linestyle=":")
    panel.grid(alpha=0.3)
    panel.legend(title="rank (final distance)", fontsize=8, title_fontsize=8)
