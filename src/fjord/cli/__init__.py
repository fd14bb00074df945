"""The command line."""

import sys

import typer
from rich.console import Console

from fjord.cli import data, engines, fleet, inference, models, profile, runs, search, tiers
from fjord.cli import export as exports
from fjord.core.errors import UserError
from reproduction import command as reproduce

app = typer.Typer(
    help="Train one network that every device can carry.",
    no_args_is_help=True,
    add_completion=False,
)
COMMANDS = (
    *(
        runs.run,
        runs.report,
        runs.show,
        data.data,
        models.inspect,
        models.footprint,
        models.cut,
        exports.export,
    ),
    *(reproduce.reproduce, reproduce.results),
    *(profile.profile, tiers.tiers, engines.app, inference.latency, search.search),
)
for command in COMMANDS:
    app.command()(command)
app.command(name="list")(runs.list_recipes)
app.add_typer(fleet.app, name="fleet")


def main() -> None:
    """Run the command line; what a user got wrong is one line, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as error:
        Console(stderr=True, highlight=False).print(f"fjord: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
