"""`fjord fleet` starts real processes, shows them, and ends exactly those."""

import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import commands as shell
from commands import wait_until

from fjord.engines.flower import commands, fleet, launch, processes
from fjord.engines.flower.folder import claim_folder

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="fjord fleet needs /proc"
)


def fjord(*words: str) -> subprocess.CompletedProcess[str]:
    return shell.fjord("fleet", *words)


@pytest.fixture
def folder(tmp_path):
    """A folder for a fleet, which is ended whatever happens."""
    path = tmp_path / "fleet"
    yield path
    fleet.stop_fleet(path)


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

    known = fleet.load_fleet(folder)
    assert [process.name for process in known.processes] == ["superlink", "node-0", "node-1"]
    assert len({process.port for process in known.processes}) == 3
    assert 'partition-id=0 num-partitions=2 client-id=0 ceiling="2/5"' in known.processes[1].command
    for key in (folder / "keys/node-0", folder / "keys/node-1", folder / "certificates/server.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for (
        process
    ) in known.processes:  # code that lies about must not be found before the code that is sent
        work = Path(os.readlink(f"/proc/{process.pid}/cwd"))
        assert work == folder / "work" / process.name
        assert list(work.iterdir()) == []

    shown = fjord("status", "--folder", str(folder))
    assert shown.returncode == 0
    assert [rows(shown.stdout)[f"node-{k}"][4] for k in (0, 1)] == ["yes", "yes"]
    assert "already up" in fjord("up", "--nodes", "1", "--folder", str(folder)).stderr

    everything = processes.find_marked(known.mark)
    assert len(everything) == 6  # each with its SuperExec

    os.kill(known.processes[2].pid, signal.SIGKILL)
    wait_until(lambda: not known.processes[2].alive)
    shown = fjord("status", "--folder", str(folder))
    assert shown.returncode == 1
    assert [rows(shown.stdout)[name][1] for name in ("superlink", "node-0", "node-1")] == [
        "yes",
        "yes",
        "no",
    ]

    os.kill(known.processes[0].pid, signal.SIGKILL)
    wait_until(lambda: not known.processes[0].alive)
    assert "The SuperLink does not answer" in fjord("status", "--folder", str(folder)).stdout
    restarted = launch.restart_process(folder, "superlink")
    assert known.node_ids["node-0"] in restarted.online()  # it knows its nodes again

    ended = fjord("down", "--folder", str(folder))
    assert ended.returncode == 0
    assert "Ended superlink, node-0 and" in ended.stdout
    assert "Already dead: node-1." in ended.stdout
    assert processes.find_marked(known.mark) == {}
    assert [pid for pid, begun in everything.items() if processes._start_time(pid) == begun] == []
    sessions = {process.pid for process in (*known.processes, *restarted.processes)}
    assert [
        e.name
        for e in Path("/proc").iterdir()
        if e.name.isdigit() and session(int(e.name)) in sessions
    ] == []

    again = fjord("down", "--folder", str(folder))
    assert again.returncode == 0
    assert "nothing to end" in again.stdout
    assert stranger.poll() is None


def session(pid: int) -> int | None:
    """The session of a living process."""
    fields = processes._fields(pid)
    return int(fields[3]) if fields and fields[0] not in "ZX" else None


def test_a_port_that_is_taken_stops_the_start_before_anything_runs(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = fjord("up", "--nodes", "1", "--port", str(port), "--folder", str(folder))
    assert failed.returncode == 2
    assert f"port {port} of 127.0.0.1 cannot be had" in failed.stderr
    assert not (folder / "fleet.json").exists()


def test_a_node_that_cannot_start_takes_the_others_with_it(folder, monkeypatch):
    """Its port is taken after the look at it, as can happen; the error names it and shows its log."""
    marks = []
    monkeypatch.setattr(
        launch.secrets,
        "token_hex",
        lambda count: marks.append(os.urandom(count).hex()) or marks[-1],
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [*commands.free_ports(1), taken.getsockname()[1]]
        monkeypatch.setattr(commands, "free_ports", lambda count, first=None: ports)
        with pytest.raises(
            ValueError, match=r"node-0 ended while node-0 was starting(?s:.*)address already in use"
        ):
            launch.start_fleet(folder, 1)
    assert processes.find_marked(marks[0]) == {}
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
    wait_until(lambda: (known := fleet.load_fleet(folder)) and known.processes, 60)
    mark = fleet.load_fleet(folder).mark
    start.send_signal(number)
    start.wait(60)
    if number == signal.SIGKILL:
        assert processes.find_marked(mark)
        assert fleet.stop_fleet(folder).alive == ("superlink",)
    assert processes.find_marked(mark) == {}
    assert not (folder / "fleet.json").exists()


def test_a_pid_in_another_hand_is_never_killed(folder, stranger, tmp_path):
    claim_folder(folder)
    begun = processes._start_time(stranger.pid)
    for mark, start_time in (
        ("of-old", begun + 1),
        ("of-old", begun),
    ):  # the second: the same ticks after another boot
        old = processes.MarkedProcess(
            "superlink", stranger.pid, start_time, 1, ("sleep",), "", mark
        )
        fleet.LoopbackFleet(
            folder, mark, tls=False, processes=(old, replace(old, name="node-0"))
        ).save()
        ended = fjord("down", "--folder", str(folder))
        assert ended.returncode == 0
        assert "nothing to end" in ended.stdout
        assert "Already dead: superlink, node-0." in ended.stdout
        assert stranger.poll() is None


def test_a_process_that_is_not_the_one_meant_gets_no_signal(stranger):
    begun = processes._start_time(stranger.pid)
    processes._signal({stranger.pid: begun + 1}, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        stranger.wait(0.2)
    processes._signal({stranger.pid: begun}, signal.SIGKILL)
    assert stranger.wait(5) == -signal.SIGKILL


def test_processes_that_do_not_want_to_end_are_killed_with_all_they_started(tmp_path):
    forever = "echo $$; while :; do sleep 0.1; done"
    (tmp_path / "deaf.sh").write_text(f"trap '' TERM; {forever}")
    script = f"setsid sh deaf.sh & env -i sh deaf.sh & {forever}"  # the second has no environment, and so no mark
    env = {**os.environ, processes.MARK: "deaf/one"}
    log = tmp_path / "log"
    process = processes.start_process(
        "one", ["sh", "-c", script], 0, log=log, work=tmp_path, env=env
    )
    wait_until(lambda: len(log.read_text().split()) == 3)
    family = {int(pid) for pid in log.read_text().split()}
    assert family <= set(processes.find_marked("deaf/one"))
    assert processes.find_marked("deaf/on") == {}
    assert processes.end_processes("deaf", [process], patience=0.3) >= 3
    assert processes.find_marked("deaf") == {}
    assert [pid for pid in family if processes._start_time(pid)] == []


@pytest.mark.parametrize(
    ("num_nodes", "options", "complaint"),
    [
        (0, {}, "--nodes 0: must be at least 1"),
        (3, {"ceilings": ["1/5", "1"]}, "--ceilings: 2 were given for 3 nodes"),
        (1, {"ceilings": ["6/5"]}, "width '6/5' is not"),
        (1, {"port": 70000}, "--port 70000"),
    ],
)
def test_wrong_options_are_named(folder, num_nodes, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        launch.start_fleet(folder, num_nodes, **options)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "keys").mkdir()
    with pytest.raises(ValueError, match="holds other things"):
        launch.start_fleet(tmp_path, 1)
    assert fleet.stop_fleet(tmp_path) == fleet.EndedProcesses()
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]
