"""`fjord profile` as a user types it, and the page on devices."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from profiles import MINE, quick  # noqa: F401

import fjord
from fjord.cli import main
from fjord.devices.profile import read_profile


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with a file of one's own; return its exit code and what it said."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fjord", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize("name", ["mine:net", "mine.py:net"])
def test_a_model_of_ones_own_is_profiled_with_a_table_and_json(command, tmp_path, name):
    limits = ["--deadline", "1h", "--examples", "100", "--memory", "1GB", "--bandwidth", "5Mbit"]
    code, out, err = command("profile", name, "--widths", "1/2,1", *limits, "--json", "a.json")
    assert (code, err) == (0, "")
    assert "with distillation: width 1" in out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["budget"] == {
        "deadline": 3600.0,
        "memory": 10**9,
        "bandwidth": 625_000.0,
        "examples": 100,
    }
    assert [(a["kd"], a["width"]) for a in found["answers"]] == [(True, "1"), (False, "1")]
    assert read_profile("a.json").model == name


def test_a_recipe_brings_its_own_settings_and_json_can_be_printed(command):
    code, out, _ = command(
        "profile", "mine.py", "--set", "batch_size=7", "--measure", "1", "--no-kd", "--json", "-"
    )
    found = json.loads(out)
    assert code == 0
    assert (found["batch_size"], found["method"], len(found["costs"])) == (7, "fjord", 2)
    assert [c["time"] for c in found["costs"]] == ["predicted", "measured"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["mine:net", "--memory", "1kB", "--widths", "1/5,1", "--kd"],
            "nothing fits: memory=1kB: the smallest width 1/5 needs",
        ),
        (
            ["mine.py", "--deadline", "1ms", "--examples", "9000"],
            "nothing fits: deadline=1ms: the smallest width 1/2",
        ),
        (["mine:net", "--memory", "-1GB"], "--memory -1GB: must be above 0"),
        (
            ["mine:net", "--deadline", "3 weeks", "--examples", "3"],
            "--deadline 3 weeks: has the unknown unit 'weeks'",
        ),
        (["mine:net", "--deadline", "3s"], "--deadline 3.0: needs examples"),
        (["mine:two"], "model 'mine:two' takes 2 inputs; clients train on one tensor of examples"),
        (
            ["mine:net", "--set", "lr=3"],
            "--set lr=3: is only for recipes: mine:net is a model",
        ),
        (
            ["mine.py", "--input", "3x3"],
            "--input 3x3: is only for models: recipe mine.py brings its own data",
        ),
        (["nothing"], "model 'nothing' is neither one of resnet18, cnn, rnn, demo"),
        (["mine:net", "--measure", "1/3"], "width 1/3 is not one of"),
    ],
)
def test_mistakes_are_one_line_each(command, words, says):
    code, _, err = command("profile", *words)
    assert code == 2
    assert says in err.replace("\n", " ")
    assert "Traceback" not in err


PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


def test_what_the_page_on_devices_says_is_run_as_it_stands(command, tmp_path):
    pytest.importorskip("matplotlib")
    page = PAGE.read_text()
    (table,) = re.findall(r"```csv\n(.*?)```", page, re.S)
    (tmp_path / "fleet.csv").write_text(table)
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()
    ]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("fjord ")]
    assert {words[1] for words in commands} >= {"profile", "tiers", "run"}
    for words in commands:
        short = ["--set", "num_rounds=1", "--no-page"] if words[1] == "run" else []
        code, _, err = command(*words[1:], *short)
        assert code == 0, (words, err)
    found = json.loads((tmp_path / "here.json").read_text())
    keys = set(
        re.findall(
            r"^\| `([a-z_.]+)` \|", page.partition("### The JSON")[2].partition("\n## ")[0], re.M
        )
    )
    assert {*found, *(f"costs.{key}" for key in found["costs"][0])} == keys
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["width"] in fjord.uniform_widths(5).widths
