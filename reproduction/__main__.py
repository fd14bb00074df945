"""`python -m reproduction`: the paper's figures, results and Theorem 1, from a clone of the repository.

python -m reproduction fig5 --scale laptop          # any figure, or all
python -m reproduction results                      # writes RESULTS.md
python -m reproduction theorem1 --seed 3            # also theorem1.paper, theorem1.decaying
python -m reproduction whole-models RUN_FOLDER
"""

import sys

import typer
from rich.console import Console

from fjord.core.errors import UserError
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
for figure in FIGURES.values():
    app.command(name=figure.name, help=f"{figure.title}.")(figure_command)
app.command(name="all", help="Every figure and table, and one HTML page of all of them.")(
    figure_command
)
app.command(name="results")(write_results)
app.command(name="theorem1", help="Theorem 1 by experiment: both settings below, with a figure.")(
    theorem1_command
)
for name, recipe in theorem1.RECIPES.items():
    summary = (recipe.__doc__ or "").splitlines()[0]
    app.command(name=name, help=summary.removeprefix("Return "))(theorem1_command)
app.command(name="whole-models")(whole_models)


def main() -> None:
    """Run the command line; a user's mistake is one line, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as error:
        console = Console(stderr=True, highlight=False)
        console.print(f"reproduction: {error}", markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
