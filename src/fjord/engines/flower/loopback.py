"""A fleet on this machine: a SuperLink and SuperNodes as real processes, started, found and ended.

The processes outlive the command that starts them. They are found again by a mark in their
environment, which their children inherit, and never by a pid alone.
"""

import json
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from filelock import FileLock, Timeout

from fjord.core.errors import UserError
from fjord.core.files import write_text
from fjord.engines.flower.keys import make_certificate, make_node_key
from fjord.engines.flower.programs import process_environment, script_path

MARK = "FJORD_FLEET"  # the environment variable
HOST = "127.0.0.1"
START_SECONDS = 120.0  # for one process, on a busy machine
SUBFOLDERS = ("flwr", "certificates", "keys", "logs", "home", "work")
NOTE = "# Made by fjord fleet: private keys, logs, a database.\n*\n"
T = TypeVar("T")


@dataclass(frozen=True)
class MarkedProcess:
    """A process of a fleet."""

    name: str
    pid: int
    port: int
    command: list[str]
    mark: str

    @property
    def alive(self) -> bool:
        """Whether this process runs; neither a zombie nor another process with its pid counts."""
        try:
            return has_mark(psutil.Process(self.pid), self.mark)
        except psutil.NoSuchProcess:
            return False


@dataclass
class LoopbackFleet:
    """What was started in a folder: `superlink` first, then `node-0`, `node-1`, ..."""

    folder: Path
    mark: str
    tls: bool
    processes: dict[str, MarkedProcess] = field(default_factory=dict)
    node_ids: dict[str, str] = field(default_factory=dict)
    """The SuperLink's number for a node, by the node's name."""

    @property
    def flwr_home(self) -> Path:
        """The FLWR_HOME whose config.toml describes the connection `fleet`."""
        return self.folder / "flwr"

    def log_path(self, name: str) -> Path:
        """Return where a process writes its output."""
        return self.folder / "logs" / f"{name}.log"

    def ask_superlink(self, *words: str) -> dict[str, Any]:
        """Run `flwr WORDS` and return its answer."""
        home = self.flwr_home
        command = [script_path("flwr"), *words, "--format", "json"]
        env = process_environment(home)
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"error-message": (done.stderr or done.stdout).strip()}
        if "error-message" in answer:
            raise UserError(f"flwr {' '.join(words)}: {answer['error-message']}")
        return answer

    def online_nodes(self) -> set[str]:
        """Return the ids of the nodes that the SuperLink lists as online."""
        nodes = self.ask_superlink("supernode", "list", "fleet")["nodes"]
        return {node["node-id"] for node in nodes if node["status"] == "online"}

    def save(self) -> None:
        """Write fleet.json."""
        processes = [asdict(process) for process in self.processes.values()]
        content = {**vars(self), "folder": str(self.folder), "processes": processes}
        write_text(self.folder / "fleet.json", json.dumps(content, indent=1))


def load_fleet(folder: Path) -> LoopbackFleet | None:
    """Return the fleet of a folder; None if there never was one, or if it was ended."""
    try:
        content = json.loads((folder / "fleet.json").read_text())
    except FileNotFoundError:
        return None
    processes = {}
    for entry in content["processes"]:
        name = entry["name"]
        process = MarkedProcess(name, entry["pid"], entry["port"], entry["command"], entry["mark"])
        processes[name] = process
    return LoopbackFleet(
        folder.resolve(), content["mark"], content["tls"], processes, content["node_ids"]
    )


def start_fleet(
    folder: Path,
    configs: Sequence[str],
    *,
    tls: bool = False,
    port: int | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> LoopbackFleet:
    """Start a SuperLink and a node for each configuration; if one does not start, end all."""
    if not psutil.LINUX:
        raise UserError("a fleet on one machine needs Linux; docs/fleet.md starts nodes by hand")
    script_path("flower-superlink")  # says what to install, before anything is written
    _claim_folder(folder)
    with _folder_lock(folder):
        earlier = load_fleet(folder)
        if earlier is not None and find_marked(earlier.mark):
            raise UserError("has a fleet that is already up", field="folder", value=folder)
        ports = free_ports(len(configs) + 1, port)
        fleet = LoopbackFleet(folder.resolve(), secrets.token_hex(16), tls)
        _prepare_folder(fleet, ports[0])
        fleet.save()  # before anything runs: if this process is killed, its mark is needed
        try:
            command = _superlink_command(fleet, ports[0])
            _start_process(fleet, "superlink", command, ports[0])
            on_progress(f"superlink listens on {HOST}:{ports[0]}")
            # One after another: many that start at once on few cores miss Flower's own deadlines.
            for index, config in enumerate(configs):
                _start_node(fleet, f"node-{index}", config, ports[index + 1])
                on_progress(f"node-{index} is online: {config}")
        except BaseException:
            end_fleet(fleet)
            raise
    return fleet


def restart_process(folder: Path, name: str) -> LoopbackFleet:
    """End one process of a fleet, if it is alive, and start it again as it was."""
    fleet = load_fleet(folder)
    if fleet is None:
        raise UserError("has no fleet that is up", field="folder", value=folder)
    if name not in fleet.processes:
        raise UserError(f"must be one of {', '.join(fleet.processes)}", field="name", value=name)
    process = fleet.processes[name]
    with _folder_lock(folder):
        end_processes(process.mark)
        if fleet.tls and name != "superlink":
            # The SuperLink refuses the key of a node that was killed until it misses the node.
            missed = lambda: fleet.node_ids.get(name) not in fleet.online_nodes()  # noqa: E731
            _wait_until(fleet, "superlink", f"the SuperLink missed {name}", missed)
        try:
            _start_process(fleet, name, process.command, process.port)
        except BaseException:
            end_processes(process.mark)
            raise
    return fleet


def stop_fleet(folder: Path) -> int:
    """End what was started in this folder, and nothing else; return how many processes it was."""
    fleet = load_fleet(folder)
    if fleet is None:
        return 0
    with _folder_lock(folder):
        return end_fleet(fleet)


def end_fleet(fleet: LoopbackFleet) -> int:
    """End all processes of a fleet: the nodes first, so that they can sign off."""
    nodes = [process.pid for process in fleet.processes.values() if process.name != "superlink"]
    count = end_processes(fleet.mark, first=nodes)
    (fleet.folder / "fleet.json").unlink(missing_ok=True)
    return count


def find_marked(mark: str) -> set[psutil.Process]:
    """Return the processes with this mark or one below it, and their descendants.

    Below `a` are `a/b` and `a/c`: the mark of a fleet, and those of its processes.
    """
    psutil.process_iter.cache_clear()  # a cached process may have lost its pid to another
    marked = {process for process in psutil.process_iter() if has_mark(process, mark)}
    for process in list(marked):
        with suppress(psutil.NoSuchProcess):
            marked.update(process.children(recursive=True))
    return living_processes(marked)


def has_mark(process: psutil.Process, mark: str) -> bool:
    """Return whether a process has a mark, or one below it; a zombie has none."""
    try:
        value = process.environ().get(MARK, "")
    except psutil.Error:  # it ended meanwhile, or is another user's
        return False
    return f"{value}/".startswith(f"{mark}/")


def living_processes(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Return those that still run; a zombie does not."""
    living = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.add(process)
    return living


def end_processes(mark: str, first: Collection[int] = (), *, patience: float = 5.0) -> int:
    """End all processes with this mark, those with a pid in `first` before; return their number.

    They are asked to end, and killed if they have not after `patience` seconds.
    """
    # Kept from the start: a child without the mark is found only while its parent lives.
    family = find_marked(mark)
    _terminate([process for process in family if process.pid in first], patience)
    family |= find_marked(mark)
    _terminate(family, patience)
    while True:  # a process may start another meanwhile
        family |= find_marked(mark)
        living = living_processes(family)
        if not living:
            return len(family)
        send_signal(living, signal.SIGKILL)
        time.sleep(0.05)


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal processes; psutil makes sure that none of the pids is another's by now."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _terminate(processes: Collection[psutil.Process], patience: float) -> None:
    send_signal(processes, signal.SIGTERM)
    limit = time.monotonic() + patience
    while time.monotonic() < limit and living_processes(processes):
        time.sleep(0.05)


def free_ports(count: int, first: int | None = None) -> list[int]:
    """Return free ports of this machine: `first` and those after it, or any."""
    ports: list[int] = []
    with ExitStack() as stack:  # all stay in use until the last is found, so that none comes twice
        for index in range(count):
            port = 0 if first is None else first + index
            try:
                server = stack.enter_context(socket.create_server((HOST, port)))
            except (OSError, OverflowError) as error:
                message = f"cannot be used: port {port} of {HOST}: {error}"
                raise UserError(message, field="port", value=first) from None
            ports.append(server.getsockname()[1])
    return ports


def _superlink_command(fleet: LoopbackFleet, port: int) -> list[str]:
    command = [script_path("flower-superlink"), "--host", HOST, "--port", str(port)]
    # With a database it knows its nodes again when it is restarted.
    command += ["--database", str(fleet.folder / "superlink.db")]
    if not fleet.tls:
        return [*command, "--insecure"]
    certificates = fleet.folder / "certificates"
    command += ["--ssl-ca-certfile", str(certificates / "ca.crt")]
    command += ["--ssl-certfile", str(certificates / "server.crt")]
    command += ["--ssl-keyfile", str(certificates / "server.key")]
    return [*command, "--enable-supernode-auth"]


def supernode_command(fleet: LoopbackFleet, name: str, config: str, port: int) -> list[str]:
    """Return the command that starts a SuperNode."""
    superlink = f"{HOST}:{fleet.processes['superlink'].port}"
    command = [script_path("flower-supernode"), "--superlink", superlink]
    command += ["--host", HOST, "--port", str(port), "--node-config", config]
    if not fleet.tls:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(fleet.folder / "certificates" / "ca.crt")]
    return [*command, "--auth-supernode-private-key", str(fleet.folder / "keys" / name)]


def _start_node(fleet: LoopbackFleet, name: str, config: str, port: int) -> None:
    if fleet.tls:
        key = fleet.folder / "keys" / name
        make_node_key(key)
        fleet.ask_superlink("supernode", "register", f"{key}.pub", "fleet", "--name", name)
    _start_process(fleet, name, supernode_command(fleet, name, config, port), port)


def _start_process(fleet: LoopbackFleet, name: str, command: list[str], port: int) -> None:
    """Start a process and wait until it listens, and, if it is a node, until it is listed."""
    mark = f"{fleet.mark}/{name}"
    home = fleet.folder / "home" / name
    # Python looks for modules where it is started, and must find only those that are sent.
    work = fleet.folder / "work" / name
    for path in (home, work, fleet.folder / "logs"):
        path.mkdir(parents=True, exist_ok=True)
    with fleet.log_path(name).open("ab") as log:
        child = psutil.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=process_environment(home, **{MARK: mark}),
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
        )
    # On a busy machine Popen returns before the system shows the new environment.
    while child.poll() is None and not has_mark(child, mark):
        time.sleep(0.005)
    fleet.processes[name] = MarkedProcess(name, child.pid, port, command, mark)
    fleet.save()
    _wait_until(fleet, name, f"{name} was ready", lambda: _is_listening(port))
    if name != "superlink":
        _wait_for_node(fleet, name)


def _wait_for_node(fleet: LoopbackFleet, name: str) -> None:
    """Wait until the SuperLink lists one more node, which is this one."""
    others = set(fleet.node_ids.values())
    if fleet.tls:
        others.discard(fleet.node_ids.get(name, ""))  # with a key it keeps its number

    def new_node() -> str:
        return next(iter(fleet.online_nodes() - others), "")

    fleet.node_ids[name] = _wait_until(fleet, name, f"{name} was online", new_node)
    fleet.save()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _wait_until(fleet: LoopbackFleet, name: str, what: str, condition: Callable[[], T]) -> T:
    """Return the condition's value once it is true, while the process and the SuperLink live."""
    limit = time.monotonic() + START_SECONDS
    while True:
        problem = ""
        try:
            value = condition()
            if value:
                return value
        except UserError as error:  # the SuperLink is busy, or has ended
            problem = f" ({error})"
        for needed in ("superlink", name):
            if not fleet.processes[needed].alive:
                raise UserError(f"{needed} ended before {what}. {_log_end(fleet, needed)}")
        if time.monotonic() > limit:
            late = f"{START_SECONDS:g} seconds passed before {what}{problem}"
            raise UserError(f"{late}. {_log_end(fleet, name)}")
        time.sleep(0.1)


def _log_end(fleet: LoopbackFleet, name: str) -> str:
    log = fleet.log_path(name)
    text = re.sub(r"\x1b\[[\d;]*m", "", log.read_text(errors="replace"))  # without colours
    lines = text.splitlines()[-20:] or ["(the log is empty)"]
    return f"The end of {log}:\n  " + "\n  ".join(lines)


def _claim_folder(folder: Path) -> None:
    """Make the folder, or use it if it is empty or was made by `fjord fleet`."""
    note = folder / ".gitignore"
    ours = note.is_file() and note.read_text() == NOTE
    if folder.exists() and not ours and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("holds other files; name a new or empty one", field="folder", value=folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    note.write_text(NOTE)


def _prepare_folder(fleet: LoopbackFleet, port: int) -> None:
    """Clear what an earlier fleet left, and describe the SuperLink for `flwr`."""
    for name in SUBFOLDERS:
        shutil.rmtree(fleet.folder / name, ignore_errors=True)
    for file in fleet.folder.glob("superlink.db*"):
        file.unlink()
    security = "insecure = true"
    if fleet.tls:
        certificates = fleet.folder / "certificates"
        make_certificate(certificates, HOST)
        security = f"root-certificates = {json.dumps(str(certificates / 'ca.crt'))}"
    config = f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "{HOST}:{port}"\n'
    fleet.flwr_home.mkdir()
    (fleet.flwr_home / "config.toml").write_text(f"{config}{security}\n")


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Keep other commands away from the fleet of a folder."""
    try:
        with FileLock(folder / "fleet.lock", timeout=0):
            yield
    except Timeout:
        raise UserError("is in use by another command", field="folder", value=folder) from None
