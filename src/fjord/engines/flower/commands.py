"""What is called to start a SuperLink and SuperNodes on this machine."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from fjord.core.errors import UserError
from fjord.core.width import WidthLike, parse_width
from fjord.engines.flower.fleet import script_path

HOST = "127.0.0.1"


def node_configs(
    num_nodes: int,
    ceilings: Sequence[WidthLike] = (),
    bind: bool = False,
    budget: Mapping[str, str] | None = None,
) -> list[str]:
    """Return what each node is told of itself.

    >>> node_configs(2, ["0.4", 1], bind=True)[0]
    'partition-id=0 num-partitions=2 client-id=0 ceiling="2/5"'
    """
    if num_nodes < 1:
        raise UserError(f"--nodes {num_nodes}: must be at least 1")
    if ceilings and len(ceilings) != num_nodes:
        raise UserError(
            f"--ceilings: {len(ceilings)} were given for {num_nodes} nodes; give one for each"
        )
    configs = []
    for k in range(num_nodes):
        words = [f"partition-id={k}", f"num-partitions={num_nodes}"]
        words += [f"client-id={k}"] if bind else []
        words += (
            [f'ceiling="{parse_width(ceilings[k])}"'] if ceilings else []
        )  # Flower reads TOML: text has quotes
        words += [f'{key}="{value}"' for key, value in (budget or {}).items()]
        configs.append(" ".join(words))
    return configs


def free_ports(count: int, first: int | None = None) -> list[int]:
    """Return ports of this machine that are free: `first` and those after it, or any."""
    with ExitStack() as stack:
        ports = []
        for k in range(count):  # all are held until the last is found, so that none comes twice
            place = stack.enter_context(socket.socket())
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wanted = 0 if first is None else first + k
            try:
                place.bind((HOST, wanted))
            except (OSError, OverflowError) as error:
                raise UserError(
                    f"--port {first}: port {wanted} of {HOST} cannot be had ({error})"
                ) from None
            ports.append(place.getsockname()[1])
        return ports


def answers(port: int) -> bool:
    """Say whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def superlink(folder: Path, port: int, tls: bool) -> list[str]:
    """Return the SuperLink's command; with its database it knows its nodes again when it is restarted."""
    where = ["--host", HOST, "--port", str(port), "--database", str(folder / "superlink.db")]
    parts = {
        "--ssl-ca-certfile": "ca.crt",
        "--ssl-certfile": "server.crt",
        "--ssl-keyfile": "server.key",
    }
    files = [
        word
        for option, name in parts.items()
        for word in (option, str(folder / "certificates" / name))
    ]
    return [
        script_path("flower-superlink"),
        *where,
        *([*files, "--enable-supernode-auth"] if tls else ["--insecure"]),
    ]


def supernode(folder: Path, name: str, config: str, ports: tuple[int, int], tls: bool) -> list[str]:
    """Return a SuperNode's command, with the SuperLink's port and its own."""
    where = [
        "--superlink",
        f"{HOST}:{ports[0]}",
        "--host",
        HOST,
        "--port",
        str(ports[1]),
        "--node-config",
        config,
    ]
    ca, key = folder / "certificates" / "ca.crt", folder / "keys" / name
    secure = ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    return [script_path("flower-supernode"), *where, *(secure if tls else ["--insecure"])]
