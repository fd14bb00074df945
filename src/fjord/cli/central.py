"""`fjord run` for what is not federated: centralised training."""

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fjord.cli.display import format_score, results_table
from fjord.experiments.central_runner import run_central
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import absolute_setting, apply_settings
from fjord.experiments.runs import RunFolder

out = Console(highlight=False)


def is_alone(recipe: str) -> bool:
    """Say whether a recipe is one of those here."""
    return recipe in central.RECIPES


def run(
    recipe: str, settings: list[str], output: Path | None, resume: Path | None, page: bool
) -> None:
    """Run one of these recipes into its folder."""
    settings = [absolute_setting(setting) for setting in settings]
    setting = apply_settings(central.RECIPES[recipe](), settings)
    folder = (
        resume
        or output
        or RunFolder.next_free_path(Path("runs") / setting.name / str(setting.seed))
    )
    out.print(f"Run folder: {folder}", markup=False, soft_wrap=True)
    known = {"name": recipe, "set": settings}
    try:
        run_central(
            setting,
            folder,
            recipe=known,
            resume=resume is not None,
            on_epoch=partial(_say, setting.metric),
        )
    except KeyboardInterrupt:
        begun = (folder / "config.json").exists()
        hint = (
            f"Go on with: fjord run --resume {shlex.quote(str(folder))}"
            if begun
            else "Nothing was begun."
        )
        out.print(f"Stopped. {hint}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    out.print(results_table(RunFolder(folder)))
    if page:
        from fjord.report import page as html

        out.print(
            f"Page: {html.write_page([RunFolder(folder)], folder / 'report.html')}",
            markup=False,
            soft_wrap=True,
        )


def _say(metric: str, row: Mapping[str, Any], done: int, total: int) -> None:
    scores = "  ".join(
        f"{width}: {format_score(score[metric], metric)}" for width, score in row["scores"].items()
    )
    out.print(
        f"epoch {done}/{total}  {row['seconds']:.0f} s  loss {row['loss']:.3f}  {scores}",
        soft_wrap=True,
    )
