"""`python -m reproduction theorem1`, and where `fjord run` sends people who look for it."""

import sys

import pytest

from fjord.cli import main as fjord_main
from fjord.experiments.runs import RunFolder
from reproduction import theorem1
from reproduction.__main__ import main

SHORT = theorem1.Theorem1Setting(steps=40, log_every=20)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a command in a folder of its own; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    for name in theorem1.RECIPES:
        monkeypatch.setitem(theorem1.RECIPES, name, lambda: SHORT)

    def run(command, *arguments):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        code = 0
        try:
            command()
        except SystemExit as ended:
            code = ended.code or 0
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_both_settings_are_run_and_drawn(call, tmp_path):
    code, printed = call(main, "theorem1", "--seed", "3")
    assert code == 0
    assert "theorem1.paper" in printed
    for name in ("theorem1.paper", "theorem1.decaying"):
        run = RunFolder(tmp_path / "runs" / name / "3")
        assert run.config == {"recipe": "theorem1", **vars(SHORT), "seed": 3}
        assert [row["step"] for row in run.metrics()] == [0, 20, 40]
    assert (tmp_path / "runs" / "theorem1-seed3.png").stat().st_size > 5000


def test_an_old_run_folder_is_resumed(call, tmp_path):
    """A run that was stopped has fewer rows; resuming gives those of a whole one."""
    assert call(main, "theorem1.paper", "--output", "whole")[0] == 0
    folder = RunFolder.create(tmp_path / "old", {"recipe": "theorem1", **vars(SHORT)})
    folder.append([{"step": 0, "distance": [1.0] * 5}])
    code, printed = call(fjord_main, "run", "--resume", "old")
    assert code == 2
    assert "`python -m reproduction theorem1 --resume old`" in printed
    assert call(main, "theorem1", "--resume", "old")[0] == 0
    assert folder.metrics() == RunFolder(tmp_path / "whole").metrics()
    code, printed = call(main, "theorem1", "--resume", "old", "--seed", "1")
    assert code == 2
    assert "give no --seed and no --output" in printed


def test_a_run_of_other_settings_is_not_resumed(call, tmp_path):
    RunFolder.create(tmp_path / "other", {"recipe": "theorem1", **vars(SHORT), "lr": 0.5})
    code, printed = call(main, "theorem1.paper", "--resume", "other")
    assert code == 2
    assert "was begun with other settings" in printed
    RunFolder.create(tmp_path / "demo", {"recipe": {"name": "demo", "set": []}})
    code, printed = call(main, "theorem1", "--resume", "demo")
    assert (code, "demo: is not a run of theorem1" in printed) == (2, True)
