"""`fjord latency`, and the page on inference."""

import re
from pathlib import Path

from typer.testing import CliRunner

from fjord.cli import app


def test_latency_stands_beside_multiply_accumulates():
    done = CliRunner().invoke(app, ["latency", "cnn", "--widths", "1/5,1"])
    assert done.exit_code == 0, done.output
    assert "46,976" in done.output
    assert "490,880" in done.output
    assert "0.10" in done.output
    assert "1.00" in done.output


def test_the_python_of_the_page_on_inference_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "inference.md").read_text()
    names: dict[str, object] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["found"].score >= names["found"].uniform_score
    assert names["controller"].served.requests == 100
