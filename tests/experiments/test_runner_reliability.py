"""Runs that are killed, interrupted or starved of disk end with the weights of a calm run."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Python
from safetensors.torch import load_file

import fjord
from fjord.federated.records import RoundRecord

RECIPE = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
import fjord


def make(client):
    mark = Path(os.environ.get("KILL_WORKER", "-"))
    if client == 3 and mark.name != "-" and not mark.exists():
        if mark.name != "always":
            mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(os.environ.get("SLOW", "0")))
    g = torch.Generator().manual_seed(client)
    x = torch.randn(9 + client, 6, generator=g)
    return x, (x[:, :3] + 0.3 * torch.randn(9 + client, 3, generator=g)).argmax(1)


def data(seed):
    x, y = make(99)
    test = fjord.data.federated.TestSet(x, y, torch.arange(len(x)) % 6)
    return fjord.GeneratedData(6, make, test, cache_size=0)


def net():
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


def recipe():
    return fjord.Experiment(
        name="tiny", model=net, data=data, method="fjord-kd", widths=fjord.uniform_widths(2),
        tiers="uniform-2", num_rounds=8, cohort_size=4, batch_size=4, eval_every=3,
        checkpoint_seconds=0.0, scaffold=True, server="fedadam",
    )
"""

KILLER = """
import os, signal, sys
import fjord.core.tensor_files as tensor_files
import fjord.experiments.runs as runs
from fjord.cli import main

point, count = sys.argv[1], int(sys.argv[2])
sys.argv = ["fjord", *sys.argv[3:]]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def after(number):
    global count
    count -= 1
    return count == 0


save, replace, append = tensor_files.save_file, os.replace, runs.RunFolder.append


def half_a_checkpoint(tensors, path, metadata):
    save(tensors, path, metadata)
    if after(1):
        os.truncate(path, os.path.getsize(path) // 2)
        die()


def before_the_name_changes(source, target):
    if after(1):
        die()
    replace(source, target)


def half_a_row(self, rows):
    if after(1):
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write('{"stage": 0, "round": 5, "lo')
        die()
    append(self, rows)


def after_a_row(self, rows):
    append(self, rows)
    if after(1):
        die()


if point == "half a checkpoint":
    tensor_files.save_file = half_a_checkpoint
if point == "before the name changes":
    os.replace = before_the_name_changes
if point == "half a row":
    runs.RunFolder.append = half_a_row
if point == "after a row":
    runs.RunFolder.append = after_a_row
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reliability")
    (path / "tiny.py").write_text(RECIPE)
    (path / "killer.py").write_text(KILLER)
    return path


def start(
    folder: Path, *arguments: str, killer: tuple[str, int] | None = None, **env: str
) -> Python:
    program = ["-m", "fjord.cli"] if killer is None else ["killer.py", killer[0], str(killer[1])]
    return Python(*program, "run", *arguments, cwd=folder, **env)


def finish(process: Python) -> tuple[int, str, str]:
    done = process.finish()
    return done.returncode, done.stdout, done.stderr


def run_to_the_end(folder: Path, *arguments: str) -> str:
    code, out, err = finish(start(folder, *arguments, "--no-page"))
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def calm(folder):
    """A run that nothing disturbed: one worker, and a new Python with its threads."""
    words = [
        sys.executable,
        "-m",
        "fjord.cli",
        "run",
        "tiny.py",
        "--output",
        "calm",
        "--set",
        "workers=1",
        "--no-page",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run(words, cwd=folder, env=env, check=True, capture_output=True)
    return folder / "calm"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(path: Path, calm: Path) -> None:
    mine, wanted = load_file(path / "model.safetensors"), load_file(calm / "model.safetensors")
    assert mine.keys() == wanted.keys()
    assert all(mine[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)
    assert [{**row, "seconds": 0} for row in rows(path)] == [
        {**row, "seconds": 0} for row in rows(calm)
    ]
    assert json.loads((path / "clients.json").read_text()) == json.loads(
        (calm / "clients.json").read_text()
    )


def test_two_workers_give_the_weights_and_metrics_of_one(folder, calm):
    run_to_the_end(folder, "tiny.py", "--output", "two", "--set", "workers=2")
    assert_same_run(folder / "two", calm)


def test_a_run_killed_at_the_worst_moments_ends_with_the_same_weights(folder, calm):
    points = [
        ("half a checkpoint", 2),
        ("before the name changes", 3),
        ("half a row", 2),
        ("after a row", 1),
    ]
    first = ["tiny.py", "--output", "worst", "--set", "workers=2"]
    for number, point in enumerate(points):
        code, _, err = finish(
            start(folder, *(["--resume", "worst"] if number else first), killer=point)
        )
        assert code == -signal.SIGKILL, (point, err)
        drafts = list((folder / "worst").glob(".*.tmp"))
        assert bool(drafts) == (point[0] in ("half a checkpoint", "before the name changes")), point
    run_to_the_end(folder, "--resume", "worst")
    assert not list((folder / "worst").glob(".*.tmp"))
    assert_same_run(folder / "worst", calm)


def rows_seen(path: Path) -> list[str]:
    file = path / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def children_of(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_killed_from_outside_ends_with_the_same_weights_and_leaves_no_worker_behind(
    folder, calm
):
    arguments, workers = ["tiny.py", "--output", "outside", "--set", "workers=2"], []
    for wanted in (1, 3, 5):
        process = start(folder, *arguments, SLOW="0.03")
        while len(rows_seen(folder / "outside")) < wanted and process.poll() is None:
            time.sleep(0.005)
        workers += children_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        arguments = ["--resume", "outside"]
    assert len(workers) == 6
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its run"
        time.sleep(0.05)
    run_to_the_end(folder, *arguments)
    assert_same_run(folder / "outside", calm)


def test_a_folder_belongs_to_one_process_at_a_time(folder, calm):
    process = start(folder, "tiny.py", "--output", "shared", "--no-page", SLOW="0.1")
    while len(rows_seen(folder / "shared")) < 1 and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGSTOP)  # it must not be done before the other has looked
    code, _, err = finish(start(folder, "--resume", "shared"))
    os.kill(process.pid, signal.SIGCONT)
    assert code == 2
    assert (
        err.strip()
        == "fjord: run folder shared: another process runs in this folder; wait for it, or end it"
    )
    assert finish(process)[0] == 0
    assert_same_run(folder / "shared", calm)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(folder, calm):
    process = start(folder, "tiny.py", "--output", "stopped", "--set", "workers=2", SLOW="0.5")
    while len(rows_seen(folder / "stopped")) < 2 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert "fjord run --resume stopped" in out
    assert "Traceback" not in out + err
    assert (folder / "stopped" / "checkpoint.safetensors").exists()
    run_to_the_end(folder, "--resume", "stopped")
    assert_same_run(folder / "stopped", calm)


def test_a_worker_that_dies_is_noticed_and_its_task_run_again(folder):
    kills = {"KILL_WORKER": str(folder / "died")}
    code, _, err = finish(start(folder, "tiny.py", "--output", "died_once", "--no-page", **kills))
    assert code == 0, err
    assert (folder / "died").exists()
    code, _, err = finish(start(folder, "tiny.py", "--output", "undisturbed", "--no-page", **kills))
    assert code == 0, err
    assert_same_run(folder / "died_once", folder / "undisturbed")


def test_a_task_that_kills_every_worker_ends_the_run_with_one_clear_error(folder):
    code, _, err = finish(start(folder, "tiny.py", "--output", "each_time", KILL_WORKER="always"))
    assert code == 2
    assert "3 workers died of the same job" in err
    assert "Traceback" not in err


def test_a_full_disk_is_one_clear_error(folder):
    (folder / "full").mkdir()
    (folder / "full" / "metrics.jsonl").symlink_to("/dev/full")
    code, _, err = finish(start(folder, "tiny.py", "--output", "full"))
    assert code == 2
    assert "run folder full: cannot be written" in err
    assert "No space left" in err
    assert "Traceback" not in err


def test_a_disk_that_fills_up_at_a_checkpoint_keeps_the_last_one(folder, calm):
    limit = (
        "import resource, sys; from fjord.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "sys.argv = ['fjord', 'run', 'tiny.py', '--output', 'filled', '--no-page']; main()"
    )
    done = Python("-c", limit, cwd=folder).finish()
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    run_to_the_end(folder, "--resume", "filled")
    assert_same_run(folder / "filled", calm)


def test_a_folder_that_cannot_be_made_is_one_clear_error(folder):
    code, _, err = finish(start(folder, "tiny.py", "--output", "tiny.py/inside"))
    assert code == 2
    assert "run folder tiny.py/inside: cannot be written" in err


def test_a_folder_that_holds_a_run_is_never_written_over(folder, calm):
    before = (calm / "metrics.jsonl").read_text()
    code, _, err = finish(start(folder, "tiny.py", "--output", "calm"))
    assert code == 2
    assert "already holds a run" in err
    assert (calm / "metrics.jsonl").read_text() == before


def test_a_finished_run_resumed_stays_as_it_is(folder, calm):
    before = {p.name: p.read_bytes() for p in calm.iterdir()}
    run_to_the_end(folder, "--resume", "calm")
    assert {p.name: p.read_bytes() for p in calm.iterdir()} == before


def test_a_run_cannot_be_resumed_as_another_experiment(folder, calm):
    code, _, err = finish(start(folder, "--resume", "calm", "--set", "lr=0.5"))
    assert code == 2
    assert "was begun with lr=0.1, the recipe now says 0.5" in err


def test_a_folder_without_a_run_cannot_be_resumed(folder):
    (folder / "empty").mkdir(exist_ok=True)
    code, _, err = finish(start(folder, "--resume", "empty"))
    assert code == 2
    assert "there is no config.json" in err


def test_a_run_of_several_models_resumes_in_the_middle_of_any(tmp_path):
    """In Python: methods with one model for each width, stopped by an error in a callback."""
    from dataclasses import replace

    (tmp_path / "tiny.py").write_text(RECIPE)
    experiment = replace(
        __import__("runpy").run_path(str(tmp_path / "tiny.py"))["recipe"](),
        method="efd",
        workers=1,
        num_rounds=3,
    )
    fjord.run_experiment(experiment, tmp_path / "calm")

    class Stop(Exception):
        pass

    for stop in (2, 3, 4):

        def on_round(record: RoundRecord, done: int, total: int, stop: int = stop) -> None:
            assert total == 6
            if done == stop:
                raise Stop

        with pytest.raises(Stop):
            fjord.run_experiment(
                experiment, tmp_path / "several", resume=stop > 2, on_round=on_round
            )
    fjord.run_experiment(experiment, tmp_path / "several", resume=True)
    for name in ("model-1of2.safetensors", "model-1.safetensors"):
        mine, wanted = load_file(tmp_path / "several" / name), load_file(tmp_path / "calm" / name)
        assert all(mine[key].equal(wanted[key]) for key in wanted)
    assert len(rows(tmp_path / "several")) == 6
    small = (
        tmp_path / "small"
    )  # what results keep of a run: no weights, and here of its first model only
    small.mkdir()
    (small / "config.json").write_bytes((tmp_path / "calm" / "config.json").read_bytes())
    (small / "env.json").write_text('{"commit": "an older one"}')
    served = json.loads((tmp_path / "calm" / "clients.json").read_text())
    low = {
        client: row | {"width": None} if row["width"] == "1" else row
        for client, row in served.items()
    }
    assert low != served
    (small / "clients.json.gz").write_bytes(gzip.compress(json.dumps(low).encode()))
    whole = (tmp_path / "calm" / "metrics.jsonl").read_bytes()
    (small / "metrics.jsonl.gz").write_bytes(
        gzip.compress(b"".join(whole.splitlines(keepends=True)[:3]))
    )
    rounds = []

    def until(last: int) -> None:
        def on_round(record: RoundRecord, done: int, total: int) -> None:
            rounds.append(done)
            if done == last:
                raise Stop

        fjord.run_experiment(
            replace(experiment, checkpoint_seconds=1e9), small, resume=True, on_round=on_round
        )

    with pytest.raises(Stop):
        until(4)  # before its first checkpoint
    until(7)
    until(7)  # nothing is left to do
    assert rounds == [4, 4, 5, 6]
    assert json.loads((small / "clients.json").read_text()) == served
    assert json.loads((small / "env.json").read_text())["commit"].startswith("an older one, ")
    mine, wanted = (
        load_file(tmp_path / name / "model-1.safetensors") for name in ("small", "calm")
    )
    assert all(mine[key].equal(wanted[key]) for key in wanted)
    assert [row["loss"] for row in rows(small)] == [row["loss"] for row in rows(tmp_path / "calm")]
