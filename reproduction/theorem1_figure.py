"""The figure of Theorem 1: distance to the best rank-k approximation against steps."""

from collections.abc import Sequence
from pathlib import Path

from fjord.experiments.runs import RunFolder


def draw_theorem1(runs: Sequence[RunFolder], path: Path) -> Path:
    """Draw one panel per run and return the picture's path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(runs), 4.2), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for panel, run in zip(panels, runs, strict=True):
        rows, config = run.metrics(), run.config
        for k in range(config["size"]):
            label = f"k = {k + 1} ({rows[-1]['distance'][k]:.1%})"
            panel.semilogy([r["step"] for r in rows], [r["distance"][k] for r in rows], label=label)
        step = "decaying step" if config["decay"] else "constant step (the paper's setting)"
        panel.set_title(f"{step}, lr {config['lr']}", fontsize=10)
        panel.set_xlabel("SGD steps")
        panel.axhline(0.05, color="grey", linewidth=0.8, linestyle=":")
        panel.grid(alpha=0.3)
        panel.legend(title="rank (final distance)", fontsize=8, title_fontsize=8)
    panels[0].set_ylabel(r"$\|F_k - A_k\| \,/\, \|A_k\|$ (Frobenius)")
    figure.suptitle("Ordered Dropout on a linear network recovers the SVD (Theorem 1)", fontsize=11)
    figure.supxlabel(
        f"seed {runs[0].config['seed']}, commit {runs[0].env['commit']}", fontsize=7, color="grey"
    )
    figure.savefig(path, dpi=140)
    return path
