"""`fjord run`, `fjord list`, `fjord show`, `fjord report`: experiments and their results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fjord.cli.central import run_central_recipe
from fjord.cli.display import (
    RunDisplay,
    results_table,
    resume_hint,
    run_warnings,
    spending_text,
)
from fjord.cli.engines import ENGINES, EngineChoice
from fjord.cli.tables import out, print_line, print_table
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
from fjord.experiments.settings import declared_settings, settings_as_json
from fjord.federated.methods import METHODS

Recipe = Annotated[
    str, typer.Argument(help="A recipe of `fjord list`, or your own file.py[:function].")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.")
]


def run_recipe(
    recipe: Recipe = "demo",
    settings: Settings = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every random decision (as --set seed=).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder (default: runs/RECIPE/SEED).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
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
    choice = EngineChoice(engine, superlink, deadline, min_replies)
    texts = list(settings or [])
    if seed is not None:
        texts.append(f"seed={seed}")
    if resume is not None:
        if output is not None or recipe != "demo":
            raise UserError(
                "goes on in its own folder with its own recipe: give no recipe and no --output",
                field="resume",
                value=resume,
            )
        recipe, earlier_texts = _started_recipe(resume)
        texts = [*earlier_texts, *texts]
    texts = [absolute_setting(text) for text in texts]
    if recipe in central.RECIPES:
        run_central_recipe(recipe, texts, output=output, resume=resume, page=page)
        return
    folder = _run_federated(recipe, texts, choice, output=output, resume=resume)
    if not (folder / "config.json").exists():
        out.print("The run folder lies on the SuperLink's machine.")
        return
    _print_results(RunFolder(folder))
    if page:
        _write_page([RunFolder(folder)], folder / "report.html")


def _started_recipe(folder: Path) -> tuple[str, list[str]]:
    """Return the recipe and the settings that a run was started with."""
    recipe = RunFolder(folder).config.get("recipe", {})
    if recipe == "theorem1":
        raise UserError(
            f"{folder}: is a run of theorem1, which is not part of the package; in a clone of "
            f"the repository, run `python -m reproduction theorem1 --resume {folder}`"
        )
    if "name" not in recipe:
        raise UserError(
            f"{folder}: was started from Python; resume it with "
            "fjord.run_experiment(..., resume=True)"
        )
    return recipe["name"], recipe["set"]


def _run_federated(
    recipe: str,
    settings: list[str],
    choice: EngineChoice,
    *,
    output: Path | None,
    resume: Path | None,
) -> Path:
    """Run a federated recipe; return its folder."""
    experiment = apply_settings(find_recipe(recipe)(), settings)
    started_with = {"name": absolute_recipe(recipe), "set": settings}
    folder = resume or output
    if folder is not None:
        _run_experiment(experiment, folder, started_with, choice, resume=resume is not None)
        return folder
    usual_folder = Path("runs") / experiment.name / str(experiment.seed)
    while True:
        folder = RunFolder.next_free_path(usual_folder)
        try:
            _run_experiment(experiment, folder, started_with, choice, resume=False)
            return folder
        except RunExistsError:
            pass  # another run took the name in the meantime: take the next


def _run_experiment(
    experiment: Experiment,
    folder: Path,
    started_with: dict[str, Any],
    choice: EngineChoice,
    *,
    resume: bool,
) -> None:
    print_line(f"Run folder: {folder}")
    display = RunDisplay(experiment, out)
    with resume_hint(folder), display:
        choice.run(experiment, folder, started_with, resume, display.on_round)


def _print_results(run: RunFolder) -> None:
    out.print(results_table(run))
    print_line(spending_text(run))
    for warning in run_warnings(run):
        out.print(warning, markup=False, soft_wrap=True, style="yellow")


def _write_page(runs: list[RunFolder], target: Path, reach: Sequence[str] = ()) -> None:
    from fjord.report import page  # matplotlib takes a while to import

    print_line(f"Page: {page.write_page(runs, target, reach)}")


def list_recipes() -> None:
    """List the recipes that can be run, and the methods they can be run with."""
    recipes = {**RECIPES, **central.RECIPES}
    print_table(["recipe", "what it is"], _described_rows(recipes))
    print_table(["--set method=", "what it is"], _described_rows(METHODS))
    out.print(
        "They compose with: "
        "--set prox=0.01, nova=true, scaffold=true, server=fedavgm, server=fedadam"
    )


def _described_rows(functions: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return names with the first line of what their functions say."""
    rows = []
    for name, function in functions.items():
        lines = (function.__doc__ or "").splitlines()
        rows.append((name, lines[0].removeprefix("Return ")))
    return rows


def show_settings(recipe: Recipe, settings: Settings = None) -> None:
    """Print all settings of a recipe, with what they do."""
    if recipe in central.RECIPES:
        experiment: Any = apply_settings(central.RECIPES[recipe](), settings or [])
        config = settings_as_json(experiment)
    else:
        experiment = apply_settings(find_recipe(recipe)(), settings or [])
        config = experiment.config()
    declared = declared_settings(experiment)
    table = Table(title=recipe)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("what it does")
    for key, value in _with_data_options(config).items():
        text = value if isinstance(value, str) else json.dumps(value)
        help_text = declared[key].help if key in declared else ""
        table.add_row(key, Text(text), Text(help_text))
    out.print(table)


def _with_data_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the options of the data under the names that --set takes."""
    options = config.get("data")
    if not isinstance(options, dict):
        return config
    flat = {**config, "data": options["function"]}
    for name, value in options.items():
        if name != "function":
            flat[f"data.{name}"] = value
    return flat


def draw_report(
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
    folders = [RunFolder(path) for path in runs]
    _write_page(folders, output, reach or [])
