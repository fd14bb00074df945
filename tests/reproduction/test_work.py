"""Runs in processes of their own: failures are named, and two do not work on one run."""

from pathlib import Path

import pytest
from paper_tasks import add_toy_task

from reproduction import scales
from reproduction.curves import CURVES, RunJob, run_job
from reproduction.folders import run_state
from reproduction.work import RunQueue, job_command


@pytest.fixture
def toy(tmp_path, monkeypatch):
    return add_toy_task(tmp_path, monkeypatch)


class Listener:
    def __init__(self):
        self.heard = []

    def on_start(self, job, how):
        self.heard.append((job.name, how))

    def on_poll(self, job):
        pass

    def on_end(self, job, failure):
        self.heard.append((job.name, failure))


def test_a_failed_run_is_named_and_the_others_go_on(toy, tmp_path):
    laptop, listener = scales.SCALES["laptop"], Listener()
    good = run_job(toy, CURVES["fjord"], laptop, 0)
    bad = RunJob("toy/broken", good.recipe, (*good.settings, "data.broken=7"), 0)
    work = RunQueue(tmp_path / "runs", [bad, good], 1, listener)
    work.run()
    assert list(work.failed) == ["toy/broken/0"]
    assert (
        "the data is broken by 7" in (tmp_path / "runs" / "logs" / "toy-broken-0.log").read_text()
    )
    assert listener.heard[-2:] == [("toy/fjord/0", "started"), ("toy/fjord/0", None)]
    assert run_state(good, tmp_path / "runs") == "finished"


def test_two_processes_do_not_work_on_one_run(toy, tmp_path):
    from reproduction.work import run_lock

    one = run_job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    with run_lock(tmp_path, one):
        work = RunQueue(tmp_path, [one], 1, Listener())
        work.run()
    assert work.failed == {"toy/fjord/0": "another process is at work on it"}


def test_theorem1_is_run_by_the_command_of_the_reproduction():
    """From any folder: it is not part of the installed package."""
    job = RunJob("theorem1/paper", "theorem1.paper", (), 4)
    words = ["-m", "reproduction", "theorem1.paper"]
    assert job_command(job, Path("runs"))[1:] == [
        *words, "--output", "runs/theorem1/paper/4", "--seed", "4"
    ]  # fmt: skip
    assert job_command(job, Path("runs"), resume=True)[1:] == [
        *words, "--resume", "runs/theorem1/paper/4"
    ]  # fmt: skip


def test_the_queue_runs_theorem1_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = RunJob("theorem1/paper", "theorem1.paper", (), 0)
    work = RunQueue(tmp_path / "runs", [job], 1, Listener())
    work.run()
    assert work.failed == {}
    assert run_state(job, tmp_path / "runs") == "finished"
