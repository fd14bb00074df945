"""`fjord run` for centralised training."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fjord.cli.display import format_score, results_table, resume_hint
from fjord.cli.tables import out, print_line
from fjord.experiments.central_runner import run_central
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import apply_settings
from fjord.experiments.runs import RunFolder


def run_central_recipe(
    recipe: str,
    settings: list[str],
    *,
    output: Path | None = None,
    resume: Path | None = None,
    page: bool = True,
) -> None:
    """Run a centralised recipe into its folder."""
    experiment = apply_settings(central.RECIPES[recipe](), settings)
    folder = resume or output
    if folder is None:
        usual_folder = Path("runs") / experiment.name / str(experiment.seed)
        folder = RunFolder.next_free_path(usual_folder)
    print_line(f"Run folder: {folder}")
    with resume_hint(folder):
        run = run_central(
            experiment,
            folder,
            recipe={"name": recipe, "set": settings},
            resume=resume is not None,
            on_epoch=partial(_print_epoch, experiment.metric),
        )
    out.print(results_table(run))
    if page:
        from fjord.report.page import write_page  # matplotlib takes a while to import

        print_line(f"Page: {write_page([run], folder / 'report.html')}")


def _print_epoch(metric: str, row: Mapping[str, Any], done: int, total: int) -> None:
    words = [f"epoch {done}/{total}", f"{row['seconds']:.0f} s", f"loss {row['loss']:.3f}"]
    for width, score in row["scores"].items():
        words.append(f"{width}: {format_score(score[metric], metric)}")
    out.print("  ".join(words), soft_wrap=True)
