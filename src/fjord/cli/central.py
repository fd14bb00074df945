"""`fjord run` for what is not federated: Theorem 1, and training on one place."""

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fjord.cli.display import format_score, results_table
from fjord.core.errors import UserError
from fjord.experiments.central_runner import run_central
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import absolute_setting, apply_settings
from fjord.experiments.runs import RunFolder
from reproduction import theorem1

out = Console(highlight=False)


def is_alone(recipe: str) -> bool:
    """Say whether a recipe is one of those here."""
    return recipe == "theorem1" or recipe in theorem1.RECIPES or recipe in central.RECIPES


def run(
    recipe: str, settings: list[str], output: Path | None, resume: Path | None, page: bool
) -> None:
    """Run one of these recipes into its folder."""
    if recipe in central.RECIPES:
        _central(recipe, [absolute_setting(setting) for setting in settings], output, resume, page)
    else:
        _theorem1(recipe, settings, output)


def _central(
    recipe: str, settings: list[str], output: Path | None, resume: Path | None, page: bool
) -> None:
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


def _theorem1(recipe: str, settings: list[str], output: Path | None) -> None:
    names = [name for name in theorem1.RECIPES if name == recipe or name.startswith(f"{recipe}.")]
    wrong = [s for s in settings if not s.startswith("seed=") or not s[5:].isdigit()]
    if wrong:
        raise UserError(f"--set {wrong[0]}: {recipe} has one setting, seed, a whole number")
    seed, base = int(settings[-1][5:]) if settings else 0, output or Path("runs")
    done: list[RunFolder] = []
    for name in names:
        own = output is not None and len(names) == 1
        folder = base if own else RunFolder.next_free_path(base / name / str(seed))
        with out.status(f"{name} ..."):
            done.append(theorem1.run(replace(theorem1.RECIPES[name](), seed=seed), folder))
    _show(names, done, base / f"{recipe}-seed{seed}.png")


def resume_theorem1(folder: Path) -> None:
    """Run Theorem 1 again in a folder in which it was begun."""
    config = RunFolder(folder).config
    setting = theorem1.Theorem1(**{f.name: config[f.name] for f in fields(theorem1.Theorem1)})
    run = theorem1.run(setting, folder, resume=True)
    _show([str(folder)], [run], folder / "theorem1.png")


def _show(names: list[str], done: list[RunFolder], picture: Path) -> None:
    from reproduction import theorem1_figure as figure

    table = Table("rank k", *names, title="Relative distance to the best rank-k approximation")
    for k, row in enumerate(zip(*(r.metrics()[-1]["distance"] for r in done), strict=True)):
        table.add_row(str(k + 1), *(f"{value:.2%}" for value in row))
    out.print(table)
    out.print(f"Figure: {figure.draw(done, picture)}", markup=False, soft_wrap=True)
