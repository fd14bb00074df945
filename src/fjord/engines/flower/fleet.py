"""A fleet on this machine: what was started in a folder, what the SuperLink says of it, and its end."""

import json
import os
import shutil
import subprocess
import sysconfig
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.engines.flower import processes
from fjord.engines.flower.folder import folder_lock
from fjord.engines.flower.processes import MarkedProcess

OFFLINE = {  # nothing may ask the network
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


@dataclass(frozen=True)
class LoopbackFleet:
    """What was started in a folder: `superlink` first, then `node-0`, `node-1`, ..."""

    folder: Path
    mark: str
    tls: bool
    processes: tuple[MarkedProcess, ...] = ()
    node_ids: dict[str, str] = field(
        default_factory=dict
    )  # the SuperLink's number for a node, by the node's name

    @property
    def flwr_home(self) -> Path:
        """The folder for FLWR_HOME in which the connection `fleet` is described."""
        return self.folder / "flwr"

    @property
    def running(self) -> bool:
        """Whether anything that it started is still there."""
        return bool(processes.find_marked(self.mark))

    def online(self) -> set[str]:
        """Return the ids of the nodes that the SuperLink lists as online."""
        listed = self._ask_superlink("supernode", "list", "fleet")["nodes"]
        return {node["node-id"] for node in listed if node["status"] == "online"}

    def register(self, public_key: Path, name: str) -> str:
        """Let a node with this key in; return its id."""
        return str(
            self._ask_superlink("supernode", "register", str(public_key), "fleet", "--name", name)[
                "node-id"
            ]
        )

    def _ask_superlink(self, *words: str) -> dict[str, Any]:
        command = [script_path("flwr"), *words, "--format", "json"]
        env = process_environment(self.flwr_home)
        done = subprocess.run(
            command, cwd=self.flwr_home, env=env, capture_output=True, text=True, check=False
        )
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {"error-message": (done.stderr or done.stdout).strip()}
        if "error-message" in answer:
            raise UserError(f"flwr {' '.join(words)}: {answer['error-message']}")
        return dict(answer)

    def save(self) -> None:
        """Write fleet.json, whole or not at all."""
        part = self.folder / "fleet.json.part"
        part.write_text(json.dumps({**asdict(self), "folder": str(self.folder)}, indent=1))
        part.replace(self.folder / "fleet.json")


def load_fleet(folder: Path) -> LoopbackFleet | None:
    """Return the fleet of a folder; none where none was started, or where it was ended."""
    try:
        known = json.loads((folder / "fleet.json").read_text())
    except FileNotFoundError:
        return None
    started = tuple(
        MarkedProcess(**{**process, "command": tuple(process["command"])})
        for process in known["processes"]
    )
    return LoopbackFleet(**{**known, "folder": folder.resolve(), "processes": started})


@dataclass(frozen=True)
class EndedProcesses:
    """What `down` found: which processes of the fleet lived, which were dead, and how many it ended with children."""

    alive: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    count: int = 0


def stop_fleet(folder: Path) -> EndedProcesses:
    """End what `up` started in this folder, with all that came of it, and nothing else."""
    with folder_lock(folder):
        fleet = load_fleet(folder)
        return EndedProcesses() if fleet is None else close_fleet(fleet)


def close_fleet(fleet: LoopbackFleet) -> EndedProcesses:
    """End all processes of a fleet: the nodes first, so that they can take their leave of the SuperLink."""
    alive = [process for process in fleet.processes if process.alive]
    count = processes.end_processes(
        fleet.mark, [process for process in alive if process.name != "superlink"]
    )
    (fleet.folder / "fleet.json").unlink(missing_ok=True)
    dead = [process.name for process in fleet.processes if process not in alive]
    return EndedProcesses(tuple(process.name for process in alive), tuple(dead), count)


def process_environment(flwr_home: Path, **more: str) -> dict[str, str]:
    """Return this process's environment with what Flower's programs need to find each other and to stay offline."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    local = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    return {
        **os.environ,
        **OFFLINE,
        "PATH": path,
        "NO_PROXY": local,
        "FLWR_HOME": str(flwr_home),
        **more,
    }


def script_path(name: str) -> str:
    """Return the path of one of Flower's programs."""
    found = shutil.which(name, path=process_environment(Path())["PATH"])
    if found is None:
        raise UserError(f"fjord fleet needs Flower's program {name}: {install_hint('flower')}")
    return found
