"""The start of a fleet on this machine: one process after another, and all or none."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fjord.core.errors import UserError
from fjord.core.width import WidthLike
from fjord.engines.flower import commands, processes
from fjord.engines.flower.fleet import (
    LoopbackFleet,
    close_fleet,
    load_fleet,
    process_environment,
    script_path,
)
from fjord.engines.flower.folder import claim_folder, folder_lock, prepare_folder
from fjord.engines.flower.processes import MARK

PATIENCE = 120.0  # seconds for one process to start on a busy machine
T = TypeVar("T")


def start_fleet(
    folder: Path,
    num_nodes: int,
    *,
    tls: bool = False,
    port: int | None = None,
    ceilings: Sequence[WidthLike] = (),
    bind: bool = False,
    budget: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> LoopbackFleet:
    """Start a SuperLink and nodes, each waited for until the SuperLink lists it; on any fault end all of them again."""
    configs = commands.node_configs(num_nodes, ceilings, bind, budget)
    script_path("flower-superlink")  # says what to install, before anything is written
    claim_folder(folder)
    with folder_lock(folder):
        known = load_fleet(folder)
        if known is not None and known.running:
            raise UserError(
                f"--folder {folder}: a fleet is already up there; end it with `fjord fleet down`"
            )
        ports = commands.free_ports(num_nodes + 1, port)
        fleet = LoopbackFleet(folder.resolve(), secrets.token_hex(16), tls)
        prepare_folder(fleet.folder, f"{commands.HOST}:{ports[0]}", num_nodes if tls else 0)
        fleet.save()  # before anything runs: should this command be killed, `fjord fleet down` knows the mark
        try:
            return _start_all(fleet, configs, ports, say)
        except BaseException:
            close_fleet(fleet)
            raise


def restart_process(folder: Path, name: str) -> LoopbackFleet:
    """End one process of a fleet, where it still lives, and start it again as it was."""
    with folder_lock(folder):
        fleet = load_fleet(folder)
        if fleet is None:
            raise UserError(f"--folder {folder}: no fleet is up there")
        known = {process.name: process for process in fleet.processes}
        if name not in known:
            raise UserError(f"process {name!r} is not in this fleet; there are {', '.join(known)}")
        old = known[name]
        processes.end_processes(old.mark)
        if fleet.tls and name != "superlink":
            _wait_until_missed(fleet, name)
        others = set(fleet.node_ids.values()) - ({fleet.node_ids.get(name)} if fleet.tls else set())
        try:
            fleet = _start(fleet, name, list(old.command), old.port)
            return fleet if name == "superlink" else _admit(fleet, name, others)
        except BaseException:
            processes.end_processes(old.mark)
            raise


def _wait_until_missed(fleet: LoopbackFleet, name: str) -> None:
    """Wait until the SuperLink no longer lists a node that was killed: until then it refuses the node's key."""
    limit = time.monotonic() + PATIENCE
    while fleet.node_ids.get(name) in fleet.online():
        if time.monotonic() > limit:
            raise UserError(
                f"{name} ended, and after {PATIENCE:g} seconds the SuperLink still lists it as online"
            )
        time.sleep(0.5)


def _start_all(
    fleet: LoopbackFleet, configs: list[str], ports: list[int], say: Callable[[str], None]
) -> LoopbackFleet:
    fleet = _start(
        fleet, "superlink", commands.superlink(fleet.folder, ports[0], fleet.tls), ports[0]
    )
    say(f"superlink listens on {commands.HOST}:{ports[0]}")
    # One after another: many that start at once on few cores miss their own deadlines and are started twice.
    for k, (config, own) in enumerate(zip(configs, ports[1:], strict=True)):
        name, others = f"node-{k}", set(fleet.node_ids.values())
        if fleet.tls:
            fleet.register(fleet.folder / "keys" / f"{name}.pub", name)
        command = commands.supernode(fleet.folder, name, config, (ports[0], own), fleet.tls)
        fleet = _admit(_start(fleet, name, command, own), name, others)
        say(f"{name} is online: {config}")
    return fleet


def _admit(fleet: LoopbackFleet, name: str, others: set[str]) -> LoopbackFleet:
    """Wait until the SuperLink lists one more node than the others, which is this one."""
    new = _wait(fleet, name, lambda: next(iter(fleet.online() - others), None))
    fleet = replace(fleet, node_ids={**fleet.node_ids, name: new})
    fleet.save()
    return fleet


def _start(fleet: LoopbackFleet, name: str, command: list[str], port: int) -> LoopbackFleet:
    """Start a process, in place of the one of that name if there was one, and wait until it listens."""
    home, work = fleet.folder / "home" / name, fleet.folder / "work" / name
    for room in (home, work):
        room.mkdir(parents=True, exist_ok=True)
    # In an empty folder: Python looks for modules where a program was started, and would find code that was not sent.
    log = fleet.folder / "logs" / f"{name}.log"
    env = process_environment(home, **{MARK: f"{fleet.mark}/{name}"})
    process = processes.start_process(name, command, port, log=log, work=work, env=env)
    fleet = replace(
        fleet, processes=tuple({p.name: p for p in (*fleet.processes, process)}.values())
    )
    fleet.save()
    _wait(fleet, name, lambda: commands.answers(port) or None)
    return fleet


def _wait(fleet: LoopbackFleet, name: str, ready: Callable[[], T | None]) -> T:
    """Return what `ready` finds; give up when the process, or the SuperLink it needs, has ended."""
    watched = [process for process in fleet.processes if process.name in (name, "superlink")]
    limit = time.monotonic() + PATIENCE
    while True:
        problem = ""
        try:
            if (found := ready()) is not None:
                return found
        except ValueError as error:  # the SuperLink is busy, or has ended: the next lines tell
            problem = f" ({error})"
        for process in watched:
            if not process.alive:
                raise UserError(_told(f"{process.name} ended while {name} was starting", process))
        if time.monotonic() > limit:
            raise UserError(
                _told(f"{name} was not ready after {PATIENCE:g} seconds{problem}", watched[-1])
            )
        time.sleep(0.1)


def _told(what: str, process: processes.MarkedProcess) -> str:
    return f"{what}. The end of {process.log}:\n{processes.last_lines(Path(process.log))}"
