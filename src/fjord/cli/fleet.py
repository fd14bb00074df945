"""`fjord fleet up`, `status`, `restart`, `down`: a Flower fleet of processes on this machine."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fjord.cli.engines import require_flower
from fjord.core.errors import UserError
from fjord.core.width import WidthLike, parse_width
from fjord.devices.budget import Budget

out = Console(highlight=False)
app = typer.Typer(no_args_is_help=True)
Folder = Annotated[Path, typer.Option(help="Where its keys, logs and fleet.json are.")]
FOLDER = Path(".fleet")


@app.callback()
def check_requirements() -> None:
    """Start and end a Flower fleet of real processes on this machine."""
    require_flower("fjord fleet", modules=("flwr", "psutil"))


@app.command(name="up")
def start_fleet(
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
            help="The budget of each node, which measures what fits it: 'deadline=60s ...'."
        ),
    ] = "",
    bind: Annotated[
        bool, typer.Option("--bind", help="Node K is client K and no other, as in a real fleet.")
    ] = False,
) -> None:
    """Start a SuperLink and SuperNodes, one after another; print what to run next."""
    from fjord.engines.flower import loopback

    widths = ceilings.split(",") if ceilings else []
    limits = Budget.split_limits(budget)
    if limits and not bind:
        reason = "needs --bind: a node that trains any client trains any width, too"
        raise UserError(reason, field="budget", value=budget)
    configs = node_configs(nodes, widths, bind, limits)
    fleet = loopback.start_fleet(
        folder,
        configs,
        tls=tls,
        port=port,
        on_progress=_print_line,
    )
    home = shlex.quote(str(fleet.flwr_home))
    _print_line(f"\nThe fleet is up; its logs are in {fleet.folder / 'logs'}. Now, for example:")
    _print_line(f"  FLWR_HOME={home} fjord run demo --engine flower --superlink fleet")
    _print_line(f"  fjord fleet status{_folder_option(folder)}")
    _print_line(f"  fjord fleet down{_folder_option(folder)}")


@app.command(name="down")
def stop_fleet(folder: Folder = FOLDER) -> None:
    """End what `fjord fleet up` started in this folder, and nothing else."""
    from fjord.engines.flower import loopback

    fleet = loopback.load_fleet(folder)
    alive: list[str] = []
    dead: list[str] = []
    if fleet is not None:
        for process in fleet.processes.values():
            group = alive if process.alive else dead
            group.append(process.name)
    ended = loopback.stop_fleet(folder)
    children = f"{ended - len(alive)} that they had started"
    if alive:
        _print_line(f"Ended {', '.join(alive)} and {children}.")
    elif ended:
        _print_line(f"Ended {children}.")
    else:
        _print_line(f"No fleet runs in {folder}: nothing to end.")
    if dead:
        _print_line(f"Already dead: {', '.join(dead)}.")


@app.command(name="restart")
def restart_process(
    name: Annotated[str, typer.Argument(help="superlink, node-0, node-1, ...")],
    folder: Folder = FOLDER,
) -> None:
    """Start one process of the fleet again, as it was; end it before if it is alive."""
    from fjord.engines.flower import loopback

    loopback.restart_process(folder, name)
    _print_line(f"{name} runs again.")


@app.command(name="status")
def print_status(folder: Folder = FOLDER) -> None:
    """Show which processes are alive and which nodes are online; exit with 1 unless all are."""
    from fjord.engines.flower import loopback

    fleet = loopback.load_fleet(folder)
    if fleet is None:
        _print_line(f"No fleet was started in {folder}, or it was ended.")
        raise typer.Exit(1)
    online = None
    try:
        online = fleet.online_nodes()
    except UserError as error:
        _print_line(f"The SuperLink does not answer: {error}")
    complete = online is not None
    table = Table("process", "pid", "alive", "port", "node id", "online")
    for process in fleet.processes.values():
        node_id = fleet.node_ids.get(process.name, "")
        listed = _online_text(node_id, online)
        alive = "yes" if process.alive else "no"
        complete = complete and alive == "yes" and listed != "no"
        table.add_row(
            process.name,
            str(process.pid),
            alive,
            str(process.port),
            node_id,
            listed,
        )
    out.print(table)
    if not complete:
        raise typer.Exit(1)


def node_configs(
    nodes: int,
    ceilings: Sequence[WidthLike] = (),
    bind: bool = False,
    budget: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the configuration of each node, as Flower reads it.

    >>> node_configs(2, ["0.4", 1], bind=True)[0]
    'partition-id=0 num-partitions=2 client-id=0 ceiling="2/5"'
    """
    if nodes < 1:
        raise UserError("must be at least 1", field="nodes", value=nodes)
    if ceilings and len(ceilings) != nodes:
        value = ",".join(map(str, ceilings))
        raise UserError(f"must be {nodes} widths, one for each node", field="ceilings", value=value)
    configs = []
    for node in range(nodes):
        config = f"partition-id={node} num-partitions={nodes}"
        if bind:
            config += f" client-id={node}"
        if ceilings:
            config += f' ceiling="{parse_width(ceilings[node])}"'
        for limit, value in (budget or {}).items():
            config += f' {limit}="{value}"'
        configs.append(config)
    return configs


def _online_text(node_id: str, online: set[str] | None) -> str:
    if not node_id:  # the SuperLink itself, or a node that never was online
        return ""
    if online is None:
        return "?"
    return "yes" if node_id in online else "no"


def _folder_option(folder: Path) -> str:
    return "" if folder == FOLDER else f" --folder {shlex.quote(str(folder))}"


def _print_line(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)
