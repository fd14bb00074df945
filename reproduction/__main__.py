"""`python -m reproduction`: the paper's figures, results and Theorem 1, in a clone.

- `python -m reproduction fig5 --scale laptop`: any figure of the paper, or `all`
- `python -m reproduction results`: write RESULTS.md
- `python -m reproduction theorem1 --seed 3`: also `theorem1.paper`, `theorem1.decaying`
- `python -m reproduction whole-models RUN_FOLDER`
"""

import typer

from fjord.cli.errors import run_command_line
from reproduction import theorem1
from reproduction.command import figure_command, write_results
from reproduction.figures import FIGURES
from reproduction.theorem1_command import theorem1_command
from reproduction.whole_models import whole_models

app = typer.Typer(
    name="python -m reproduction",
    help="Reproduce the FjORD paper: run its figures, compare with its claims, write the results.",
    no_args_is_help=True,
    add_completion=False,
)


def add_commands() -> None:
    """Add a command for each figure, for the results and for Theorem 1."""
    for figure in FIGURES.values():
        app.command(name=figure.name, help=f"{figure.title}.")(figure_command)
    every_figure = "Every figure and table, and one HTML page of all of them."
    app.command(name="all", help=every_figure)(figure_command)
    app.command(name="results")(write_results)
    both_settings = "Theorem 1 by experiment: both settings below, with a figure."
    app.command(name="theorem1", help=both_settings)(theorem1_command)
    for name, recipe in theorem1.RECIPES.items():
        summary = (recipe.__doc__ or "").splitlines()[0]
        app.command(name=name, help=summary.removeprefix("Return "))(theorem1_command)
    app.command(name="whole-models")(whole_models)


add_commands()


def main() -> None:
    """Run the command line."""
    run_command_line(app, "reproduction")


if __name__ == "__main__":
    main()
