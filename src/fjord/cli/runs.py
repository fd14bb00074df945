"""`fjord run`, `fjord list`, `fjord show`, `fjord report`: experiments and what came of them."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fjord.cli import central as alone
from fjord.cli.display import RunDisplay, results_table, run_warnings, spending_text
from fjord.cli.engines import ENGINES, EngineChoice
from fjord.core.errors import UserError
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import central
from fjord.experiments.recipes.find import (
    RECIPES,
    absolute_recipe,
    absolute_setting,
    apply_settings,
    find_recipe,
)
from fjord.experiments.runs import RunExistsError, RunFolder
from fjord.experiments.settings import settings_as_json
from fjord.federated.methods import METHODS

out = Console(highlight=False)
Recipe = Annotated[
    str, typer.Argument(help="A recipe of `fjord list`, or your own file.py[:function].")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.")
]


def run(
    recipe: Recipe = "demo",
    settings: Settings = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every random decision (as --set seed=).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder (default: runs/RECIPE/SEED).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    page: Annotated[bool, typer.Option(help="Draw the HTML page at the end.")] = True,
    engine: Annotated[
        str, typer.Option(help="Where clients train: in-process, flower-sim (Ray) or flower.")
    ] = ENGINES[0],
    superlink: Annotated[
        str | None, typer.Option(help="With --engine flower: the SuperLink, by its name.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="With Flower: seconds that a round waits for replies.")
    ] = 600.0,
    min_replies: Annotated[
        int, typer.Option(help="With Flower: fewer leave the model as it was.")
    ] = 1,
) -> None:
    """Run a recipe into a run folder; end with a table and the path of an HTML page."""
    where = EngineChoice(engine, superlink, deadline, min_replies)
    chosen = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    if resume is not None:
        if output is not None or recipe != "demo":
            raise UserError(
                "--resume goes on in its own folder with its own recipe: give no recipe and no --output"
            )
        known = RunFolder(resume).config.get("recipe", {})
        if known == "theorem1":
            raise UserError(
                f"{resume}: is a run of theorem1, which is not part of the package; in a clone of the "
                f"repository, run `python -m reproduction theorem1 --resume {resume}`"
            )
        if "name" not in known:
            raise UserError(
                f"{resume}: was started from Python; go on with fjord.run_experiment(..., resume=True)"
            )
        recipe, chosen = known["name"], [*known["set"], *chosen]
    if alone.is_alone(recipe):
        alone.run(recipe, chosen, output, resume, page)
        return
    chosen = [absolute_setting(setting) for setting in chosen]
    experiment = apply_settings(find_recipe(recipe)(), chosen)
    known = {"name": absolute_recipe(recipe), "set": chosen}
    while True:
        folder = (
            resume
            or output
            or RunFolder.next_free_path(Path("runs") / experiment.name / str(experiment.seed))
        )
        try:
            _run(experiment, folder, known, resume is not None, where)
            break
        except RunExistsError:
            if output is not None:
                raise  # else another run took the name meanwhile: take the next
    if not (folder / "config.json").exists():
        out.print("The run folder lies on the SuperLink's machine.")
        return
    out.print(results_table(RunFolder(folder)))
    out.print(spending_text(RunFolder(folder)), markup=False, soft_wrap=True)
    for warning in run_warnings(RunFolder(folder)):
        out.print(warning, markup=False, soft_wrap=True, style="yellow")
    if page:
        _page([RunFolder(folder)], folder / "report.html")


def _run(
    experiment: Experiment,
    folder: Path,
    recipe: dict[str, object],
    resume: bool,
    where: EngineChoice,
) -> None:
    out.print(f"Run folder: {folder}", markup=False, soft_wrap=True)
    display = RunDisplay(experiment, out)
    try:
        with display:
            where.run(experiment, folder, recipe, resume, display.on_round)
    except KeyboardInterrupt:
        begun = (folder / "config.json").exists()
        hint = (
            f"Go on with: fjord run --resume {shlex.quote(str(folder))}"
            if begun
            else "Nothing was begun."
        )
        out.print(f"Stopped. {hint}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


def _page(runs: list[RunFolder], target: Path, reach: Sequence[str] = ()) -> None:
    from fjord.report import page

    out.print(f"Page: {page.write_page(runs, target, reach)}", markup=False, soft_wrap=True)


def list_recipes() -> None:
    """List the recipes that can be run, and the methods they can be run with."""
    table = Table("recipe", "what it is")
    for name, recipe in RECIPES.items():
        table.add_row(name, _first_line(recipe))
    for name, setting in central.RECIPES.items():
        table.add_row(name, _first_line(setting))
    out.print(table)
    methods = Table("--set method=", "what it is")
    for name, method in METHODS.items():
        methods.add_row(name, _first_line(method))
    out.print(methods)
    out.print(
        "They compose with: --set prox=0.01, nova=true, scaffold=true, server=fedavgm, server=fedadam"
    )


def _first_line(function: object) -> str:
    return (function.__doc__ or "").splitlines()[0].removeprefix("Return ")


def show(recipe: Recipe, settings: Settings = None) -> None:
    """Print all settings of a recipe."""
    if recipe in central.RECIPES:
        config = settings_as_json(apply_settings(central.RECIPES[recipe](), settings or []))
    else:
        config = apply_settings(find_recipe(recipe)(), settings or []).config()
    table = Table("setting", "value", title=recipe)
    options = config.get("data")
    if isinstance(options, dict):  # under the names that --set takes
        config = {
            **config,
            "data": options.pop("function"),
            **{f"data.{k}": v for k, v in options.items()},
        }
    for key, value in config.items():
        table.add_row(key, Text(value if isinstance(value, str) else json.dumps(value)))
    out.print(table)


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders; those that differ only in seed are averaged.")
    ],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    reach: Annotated[
        list[str] | None,
        typer.Option(help="Say what it took to reach this score, such as 70%; may be repeated."),
    ] = None,
) -> None:
    """Draw runs as one self-contained HTML page."""
    _page([RunFolder(path) for path in runs], output, reach or [])
