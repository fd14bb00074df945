"""The command line."""

from collections.abc import Callable

import typer

from fjord.cli import data, engines, fleet, inference, models, profile, runs, search, tiers
from fjord.cli import export as exports
from fjord.cli.errors import run_command_line

app = typer.Typer(
    help="Train one network that every device can carry.",
    no_args_is_help=True,
    add_completion=False,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "run": runs.run_recipe,
    "report": runs.draw_report,
    "show": runs.show_settings,
    "data": data.describe_data,
    "inspect": models.inspect_model,
    "footprint": models.print_footprint,
    "cut": models.cut_file,
    "export": exports.export_files,
    "profile": profile.profile_device,
    "tiers": tiers.group_fleet,
    "app": engines.write_flower_app,
    "latency": inference.print_latency,
    "search": search.search_submodel,
    "list": runs.list_recipes,
}
for name, command in COMMANDS.items():
    app.command(name=name)(command)
app.add_typer(fleet.app, name="fleet")


def main() -> None:
    """Run the command line."""
    run_command_line(app, "fjord")
