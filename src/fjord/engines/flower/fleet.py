"""A fleet on this machine: what was started in a folder, what the SuperLink says of it, and its end."""

import json
import os
import shutil
import subprocess
import sysconfig
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fjord.engines.flower import processes
from fjord.engines.flower.folder import at_work
from fjord.engines.flower.processes import Process
from fjord.extras import how_to_install

OFFLINE = {  # nothing may ask the network
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


@dataclass(frozen=True)
class Fleet:
    """What was started in a folder: `superlink` first, then `node-0`, `node-1`, ..."""

    folder: Path
    mark: str
    tls: bool
    processes: tuple[Process, ...] = ()
    node_ids: dict[str, str] = field(default_factory=dict)  # the SuperLink's number for a node, by the node's name

    @property
    def flwr_home(self) -> Path:
        """The folder for FLWR_HOME in which the connection `fleet` is described."""
        return self.folder / "flwr"

    @property
    def running(self) -> bool:
        """Whether anything that it started is still there."""
        return bool(processes.marked(self.mark))

    def online(self) -> set[str]:
        """Return the ids of the nodes that the SuperLink lists as online."""
        listed = self._ask_superlink("supernode", "list", "fleet")["nodes"]
        return {node["node-id"] for node in listed if node["status"] == "online"}

    def register(self, public_key: Path, name: str) -> str:
        """Let a node with this key in; return its id."""
        return str(self._ask_superlink("supernode", "register", str(public_key), "fleet", "--name", name)["node-id"])

    def _ask_superlink(self, *words: str) -> dict[str, Any]:
        command = [script("flwr"), *words, "--format", "json"]
        env = environment(self.flwr_home)
        done = subprocess.run(command, cwd=self.flwr_home, env=env, capture_output=True, text=True, check=False)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {"error-message": (done.stderr or done.stdout).strip()}
        if "error-message" in answer:
            raise ValueError(f"flwr {' '.join(words)}: {answer['error-message']}")
        return dict(answer)

    def save(self) -> None:
        """Write fleet.json, whole or not at all."""
        part = self.folder / "fleet.json.part"
        part.write_text(json.dumps({**asdict(self), "folder": str(self.folder)}, indent=1))
        part.replace(self.folder / "fleet.json")


def load(folder: Path) -> Fleet | None:
    """Return the fleet of a folder; none where none was started, or where it was ended."""
    try:
        known = json.loads((folder / "fleet.json").read_text())
    except FileNotFoundError:
        return None
    started = tuple(Process(**{**process, "command": tuple(process["command"])}) for process in known["processes"])
    return Fleet(**{**known, "folder": folder.resolve(), "processes": started})


@dataclass(frozen=True)
class Ended:
    """What `down` found: which processes of the fleet lived, which were dead, and how many it ended with children."""

    alive: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    count: int = 0


def down(folder: Path) -> Ended:
    """End what `up` started in this folder, with all that came of it, and nothing else."""
    with at_work(folder):
        fleet = load(folder)
        return Ended() if fleet is None else close(fleet)


def close(fleet: Fleet) -> Ended:
    """End all processes of a fleet: the nodes first, so that they can take their leave of the SuperLink."""
    alive = [process for process in fleet.processes if process.alive]
    count = processes.end(fleet.mark, [process for process in alive if process.name != "superlink"])
    (fleet.folder / "fleet.json").unlink(missing_ok=True)
    dead = [process.name for process in fleet.processes if process not in alive]
    return Ended(tuple(process.name for process in alive), tuple(dead), count)


def environment(flwr_home: Path, **more: str) -> dict[str, str]:
    """Return this process's environment with what Flower's programs need to find each other and to stay offline."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    local = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    return {**os.environ, **OFFLINE, "PATH": path, "NO_PROXY": local, "FLWR_HOME": str(flwr_home), **more}


def script(name: str) -> str:
    """Return the path of one of Flower's programs."""
    found = shutil.which(name, path=environment(Path())["PATH"])
    if found is None:
        raise ValueError(f"fjord fleet needs Flower's program {name}: {how_to_install('flower')}")
    return found
