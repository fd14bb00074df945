"""`fjord fleet` starts real processes, shows them, and ends exactly those."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import commands as shell
import psutil
from commands import wait_until

from fjord.cli.fleet import node_configs
from fjord.engines.flower import loopback

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="fjord fleet needs Linux")


def fjord(*words: str) -> subprocess.CompletedProcess[str]:
    return shell.fjord("fleet", *words)


@pytest.fixture
def folder(tmp_path):
    """A folder for a fleet, which is ended whatever happens."""
    path = tmp_path / "fleet"
    yield path
    loopback.stop_fleet(path)


@pytest.fixture
def stranger():
    """A process that has nothing to do with any fleet."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def rows(text: str) -> dict[str, list[str]]:
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if "│" in line
    ]
    return {row[0]: row[1:] for row in cells}


def test_a_fleet_over_tls_from_its_start_to_its_end(folder, stranger):
    started = fjord(
        "up", "--nodes", "2", "--tls", "--ceilings", "0.4,1", "--bind", "--folder", str(folder)
    )
    assert started.returncode == 0, started.stderr
    assert (
        f"FLWR_HOME={folder}/flwr fjord run demo --engine flower --superlink fleet"
        in started.stdout
    )

    fleet = loopback.load_fleet(folder)
    assert list(fleet.processes) == ["superlink", "node-0", "node-1"]
    assert len({process.port for process in fleet.processes.values()}) == 3
    config = 'partition-id=0 num-partitions=2 client-id=0 ceiling="2/5"'
    assert config in fleet.processes["node-0"].command
    for key in (folder / "keys/node-0", folder / "keys/node-1", folder / "certificates/server.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # Code that lies about must not be found before the code that is sent.
    for process in fleet.processes.values():
        work = Path(psutil.Process(process.pid).cwd())
        assert work == folder / "work" / process.name
        assert list(work.iterdir()) == []

    shown = fjord("status", "--folder", str(folder))
    assert shown.returncode == 0
    assert [rows(shown.stdout)[f"node-{k}"][4] for k in (0, 1)] == ["yes", "yes"]
    assert "already up" in fjord("up", "--nodes", "1", "--folder", str(folder)).stderr

    everything = loopback.find_marked(fleet.mark)
    assert len(everything) == 6  # each with its SuperExec

    os.kill(fleet.processes["node-1"].pid, signal.SIGKILL)
    wait_until(lambda: not fleet.processes["node-1"].alive)
    shown = fjord("status", "--folder", str(folder))
    assert shown.returncode == 1
    assert [rows(shown.stdout)[name][1] for name in ("superlink", "node-0", "node-1")] == [
        "yes",
        "yes",
        "no",
    ]

    os.kill(fleet.processes["superlink"].pid, signal.SIGKILL)
    wait_until(lambda: not fleet.processes["superlink"].alive)
    assert "The SuperLink does not answer" in fjord("status", "--folder", str(folder)).stdout
    restarted = loopback.restart_process(folder, "superlink")
    assert fleet.node_ids["node-0"] in restarted.online_nodes()  # it knows its nodes again

    ended = fjord("down", "--folder", str(folder))
    assert ended.returncode == 0
    assert "Ended superlink, node-0 and" in ended.stdout
    assert "Already dead: node-1." in ended.stdout
    assert loopback.find_marked(fleet.mark) == set()
    assert loopback.living_processes(everything) == set()
    sessions = [*fleet.processes.values(), *restarted.processes.values()]
    assert members_of({process.pid for process in sessions}) == []

    again = fjord("down", "--folder", str(folder))
    assert again.returncode == 0
    assert "nothing to end" in again.stdout
    assert stranger.poll() is None


def members_of(sessions: set[int]) -> list[psutil.Process]:
    """The living processes of some sessions."""
    members = []
    for process in loopback.living_processes(psutil.process_iter()):
        try:
            if os.getsid(process.pid) in sessions:
                members.append(process)
        except ProcessLookupError:
            continue
    return members


def test_a_port_that_is_taken_stops_the_start_before_anything_runs(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = fjord("up", "--nodes", "1", "--port", str(port), "--folder", str(folder))
    assert failed.returncode == 2
    assert f"--port {port}: cannot be used: port {port} of 127.0.0.1" in failed.stderr
    assert not (folder / "fleet.json").exists()


def test_a_node_that_cannot_start_takes_the_others_with_it(folder, monkeypatch):
    """Its port is taken after it was checked; the error names it and shows the end of its log."""
    marks = []
    monkeypatch.setattr(
        loopback.secrets,
        "token_hex",
        lambda count: marks.append(os.urandom(count).hex()) or marks[-1],
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [*loopback.free_ports(1), taken.getsockname()[1]]
        monkeypatch.setattr(loopback, "free_ports", lambda count, first=None: ports)
        words = r"node-0 ended before node-0 was (ready|online)(?s:.*)address already in use"
        with pytest.raises(ValueError, match=words):
            loopback.start_fleet(folder, node_configs(1))
    assert loopback.find_marked(marks[0]) == set()
    assert not (folder / "fleet.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_is_stopped_leaves_nothing_that_cannot_be_ended(folder, number):
    command = [
        sys.executable,
        "-m",
        "fjord.cli",
        "fleet",
        "up",
        "--nodes",
        "2",
        "--folder",
        str(folder),
    ]
    listens = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  (shells may have it ignored)
    start = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=listens
    )
    wait_until(lambda: (known := loopback.load_fleet(folder)) and known.processes, 60)
    mark = loopback.load_fleet(folder).mark
    start.send_signal(number)
    start.wait(60)
    if number == signal.SIGKILL:
        assert loopback.find_marked(mark)
        fleet = loopback.load_fleet(folder)
        assert [name for name in fleet.processes if fleet.processes[name].alive] == ["superlink"]
        assert loopback.stop_fleet(folder) > 0
    assert loopback.find_marked(mark) == set()
    assert not (folder / "fleet.json").exists()


def test_a_pid_in_another_hand_is_never_killed(folder, stranger):
    """A process has the pid of one that was started, and even a mark, but that of another fleet."""
    other_mark = {**os.environ, loopback.MARK: "of-old-times/superlink"}
    marked = subprocess.Popen(["sleep", "600"], env=other_mark, start_new_session=True)
    try:
        for process in (stranger, marked):
            loopback._claim_folder(folder)
            fleet = loopback.LoopbackFleet(folder, "of-old", tls=False)
            for name in ("superlink", "node-0"):
                mark = f"of-old/{name}"
                record = loopback.MarkedProcess(name, process.pid, 1, ["sleep"], mark)
                fleet.processes[name] = record
            fleet.save()
            ended = fjord("down", "--folder", str(folder))
            assert ended.returncode == 0
            assert "nothing to end" in ended.stdout
            assert "Already dead: superlink, node-0." in ended.stdout
            assert process.poll() is None
    finally:
        marked.kill()
        marked.wait()


def test_a_process_that_is_not_the_one_meant_gets_no_signal(stranger):
    process, other = psutil.Process(stranger.pid), psutil.Process(stranger.pid)
    other._ident = (other.pid, other._ident[1] + 0.01)  # as if its pid were used again
    loopback.send_signal([other], signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        stranger.wait(0.2)
    loopback.send_signal([process], signal.SIGKILL)
    assert stranger.wait(5) == -signal.SIGKILL


def test_processes_that_do_not_want_to_end_are_killed_with_all_they_started(tmp_path):
    forever = "echo $$; while :; do sleep 0.1; done"
    (tmp_path / "deaf.sh").write_text(f"trap '' TERM; {forever}")
    # The second has no environment, and so no mark.
    script = f"setsid sh deaf.sh & env -i sh deaf.sh & {forever}"
    env = {**os.environ, loopback.MARK: "deaf/one"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(["sh", "-c", script], stdout=output, cwd=tmp_path, env=env)
    wait_until(lambda: len(log.read_text().split()) == 3)
    pids = {int(pid) for pid in log.read_text().split()}
    family = loopback.find_marked("deaf/one")
    assert pids <= {member.pid for member in family}
    assert loopback.find_marked("deaf/on") == set()
    assert loopback.end_processes("deaf", [process.pid], patience=0.3) >= 3
    assert loopback.find_marked("deaf") == set()
    assert loopback.living_processes(family) == set()


@pytest.mark.parametrize(
    ("num_nodes", "options", "complaint"),
    [
        (0, {}, "nodes=0 must be at least 1"),
        (3, {"ceilings": ["1/5", "1"]}, "ceilings=1/5,1 must be 3 widths, one for each node"),
        (1, {"ceilings": ["6/5"]}, "width '6/5' is not"),
        (1, {"port": 70000}, "port=70000 cannot be used"),
    ],
)
def test_wrong_options_are_named(folder, num_nodes, options, complaint):
    port = options.pop("port", None)
    with pytest.raises(ValueError, match=complaint):
        loopback.start_fleet(folder, node_configs(num_nodes, **options), port=port)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "keys").mkdir()
    with pytest.raises(ValueError, match="holds other files"):
        loopback.start_fleet(tmp_path, node_configs(1))
    assert loopback.stop_fleet(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]
