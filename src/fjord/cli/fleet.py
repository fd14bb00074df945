"""`fjord fleet up`, `status`, `restart`, `down`: a SuperLink and SuperNodes on this machine, as real processes."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fjord.cli.engines import require_flower
from fjord.core.errors import UserError
from fjord.devices.budget import Budget
from fjord.engines.flower import fleet as fleets
from fjord.engines.flower import launch

out = Console(highlight=False)
app = typer.Typer(no_args_is_help=True)
Folder = Annotated[Path, typer.Option(help="Where its keys, logs and fleet.json are.")]
FOLDER = Path(".fleet")


@app.callback()
def _always() -> None:
    """Start and end a Flower fleet of real processes on this machine."""
    require_flower("fjord fleet")


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="How many SuperNodes.")] = 3,
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt, and let in only nodes whose key is registered.")
    ] = False,
    folder: Folder = FOLDER,
    port: Annotated[
        int | None,
        typer.Option(help="The SuperLink's port, the nodes' following it (default: any)."),
    ] = None,
    ceilings: Annotated[
        str, typer.Option(help="The widest submodel of each node, such as 1/5,3/5,1.")
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="What each node can spare; it measures what that is enough for: 'deadline=60s ...'."
        ),
    ] = "",
    bind: Annotated[
        bool, typer.Option("--bind", help="Node K is client K and no other, as in a real fleet.")
    ] = False,
) -> None:
    """Start a SuperLink and SuperNodes, one after another; say what to run next."""
    widths = ceilings.split(",") if ceilings else []
    limits = Budget.split_limits(budget)
    if limits and not bind:
        raise UserError(
            f"--budget {budget}: needs --bind; a node that takes any client takes any width too"
        )
    fleet = launch.start_fleet(
        folder, nodes, tls=tls, port=port, ceilings=widths, bind=bind, budget=limits, say=_say
    )
    home = shlex.quote(str(fleet.flwr_home))
    _say(f"\nThe fleet is up; its logs are in {fleet.folder / 'logs'}. Now, for example:")
    _say(f"  FLWR_HOME={home} fjord run demo --engine flower --superlink fleet")
    _say(f"  fjord fleet status{_option(folder)}")
    _say(f"  fjord fleet down{_option(folder)}")


@app.command()
def down(folder: Folder = FOLDER) -> None:
    """End what `fjord fleet up` started in this folder, and nothing else."""
    ended = fleets.stop_fleet(folder)
    children = ended.count - len(ended.alive)
    if ended.count:
        _say(
            f"Ended {', '.join(ended.alive)} and {children} that they had started.".replace(
                "Ended  and", "Ended"
            )
        )
    else:
        _say(f"No fleet runs in {folder}: nothing to end.")
    if ended.dead:
        _say(f"Already dead: {', '.join(ended.dead)}.")


@app.command()
def restart(
    name: Annotated[str, typer.Argument(help="superlink, node-0, node-1, ...")],
    folder: Folder = FOLDER,
) -> None:
    """Start one process of the fleet again, as it was; end it before if it lives."""
    launch.restart_process(folder, name)
    _say(f"{name} runs again.")


@app.command()
def status(folder: Folder = FOLDER) -> None:
    """Show which processes live, and which nodes the SuperLink lists as online; exit with 1 unless all do."""
    fleet = fleets.load_fleet(folder)
    if fleet is None:
        _say(f"No fleet was started in {folder}, or it was ended.")
        raise typer.Exit(1)
    whole = all(process.alive for process in fleet.processes)
    try:
        online = fleet.online()
    except ValueError as error:
        _say(f"The SuperLink does not answer: {error}")
        online, whole = None, False
    table = Table("process", "pid", "alive", "port", "node id", "online")
    for process in fleet.processes:
        node = fleet.node_ids.get(process.name, "")
        listed = "" if not node else "?" if online is None else _yes(node in online)
        whole = whole and listed in ("", "yes")
        table.add_row(
            process.name, str(process.pid), _yes(process.alive), str(process.port), node, listed
        )
    out.print(table)
    if not whole:
        raise typer.Exit(1)


def _say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def _option(folder: Path) -> str:
    return "" if folder == FOLDER else f" --folder {shlex.quote(str(folder))}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
