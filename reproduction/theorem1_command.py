"""`python -m reproduction theorem1`: run the experiment of Theorem 1, print and draw it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fjord.core.errors import UserError
from fjord.experiments.runs import RunFolder
from reproduction import theorem1, theorem1_figure

out = Console(highlight=False)


def theorem1_command(
    context: typer.Context,
    seed: Annotated[int | None, typer.Option(help="Seed of every random decision (0).")] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The run's folder; of both runs: the folder that holds theirs (runs)."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
) -> None:
    """Run one setting of Theorem 1, or both."""
    name = str(context.info_name)
    if resume is None:
        run_theorem1(name, seed=seed or 0, output=output)
        return
    if seed is not None or output is not None:
        raise UserError(
            "--resume continues a run in its own folder: give no --seed and no --output"
        )
    resume_theorem1(name, resume)


def run_theorem1(name: str, *, seed: int, output: Path | None) -> None:
    """Run `theorem1.paper`, `theorem1.decaying`, or with `theorem1` both."""
    names = [name] if name in theorem1.RECIPES else list(theorem1.RECIPES)
    base = output or Path("runs")
    runs: list[RunFolder] = []
    for one in names:
        if output is not None and len(names) == 1:
            folder = output
        else:
            folder = RunFolder.next_free_path(base / one / str(seed))
        setting = replace(theorem1.RECIPES[one](), seed=seed)
        with out.status(f"{one} ..."):
            runs.append(theorem1.run_into_folder(setting, folder))
    _show_runs(names, runs, base / f"{name}-seed{seed}.png")


def resume_theorem1(name: str, folder: Path) -> None:
    """Run the experiment again in a folder in which it was started."""
    config = RunFolder(folder).config
    if config.get("recipe") != "theorem1":
        raise UserError(f"{folder}: is not a run of theorem1")
    if name in theorem1.RECIPES:
        setting = replace(theorem1.RECIPES[name](), seed=config["seed"])
    else:
        known = [field.name for field in fields(theorem1.Theorem1Setting)]
        setting = theorem1.Theorem1Setting(**{key: config[key] for key in known})
    run = theorem1.run_into_folder(setting, folder, resume=True)
    _show_runs([str(folder)], [run], folder / "theorem1.png")


def _show_runs(names: list[str], runs: list[RunFolder], picture: Path) -> None:
    table = Table("rank k", *names, title="Relative distance to the best rank-k approximation")
    columns = [run.metrics()[-1]["distance"] for run in runs]
    for rank, row in enumerate(zip(*columns, strict=True), 1):
        table.add_row(str(rank), *(f"{value:.2%}" for value in row))
    out.print(table)
    path = theorem1_figure.draw_theorem1(runs, picture)
    out.print(f"Figure: {path}", markup=False, soft_wrap=True)
