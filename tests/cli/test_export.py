"""`fjord export` of run folders and files as a user types it, its mistakes, and its page."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from exported import MINE, ONNX, in_a_hurry, model_of, run  # noqa: F401
from torch import nn

import fjord
from fjord.cli import main
from fjord.elastic.storage import write_submodel
from fjord.experiments.central import CentralExperiment
from fjord.experiments.recipes import central


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with runs of one model and of one for each width, and some files."""
    path = tmp_path_factory.mktemp("exports")
    (path / "mine.py").write_text(MINE)
    for name, method in (("nested", "fjord"), ("each", "single")):
        run(path, "run", "mine.py", "--output", name, "--set", f"method={method}", "--no-page")
    model, _ = model_of("cnn")
    model.save(path / "cnn.safetensors")
    (path / "short.safetensors").write_bytes((path / "cnn.safetensors").read_bytes()[:-100])
    (path / "taken.pt2").touch()
    return path


@pytest.mark.parametrize("name", ["nested", "each"])
def test_a_run_folder_is_exported_at_all_widths(name, folder):
    text = run(
        folder, "export", name, "--to", "torch", "--widths", "all", "--output", f"{name}-files"
    )
    files = sorted((folder / f"{name}-files").iterdir())
    assert [p.name for p in files] == ["model-1.pt2", "model-1of2.pt2"]
    for words in ("any batch", "one thread", "model-1of2.pt2", "MACs"):
        assert words in text
    x = torch.randn(3, 1, 4, 4)
    for path, width in zip(files, ("1", "1/2"), strict=True):
        stored = (
            folder
            / name
            / ("model.safetensors" if name == "nested" else f"{path.stem}.safetensors")
        )
        net = fjord.load_model(stored, nn.Sequential(*_layers()), width=width).eval()
        torch.testing.assert_close(torch.export.load(path).module()(x), net(x))


def _layers() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4)]


def test_what_was_recalibrated_is_exported_and_what_was_searched(folder):
    x = torch.randn(8, 1, 4, 4)
    model = fjord.load_model(folder / "nested/model.safetensors", nn.Sequential(*_layers())).eval()
    mixed = {"*": "1", "1": "1/2"}
    for widths in ("3/4", mixed):
        fjord.recalibrate(model, widths, [x])
    model.save(folder / "measured.safetensors")
    write_submodel(folder / "measured.safetensors", mixed, folder / "mixed.safetensors")
    code = ["--to", "torch", "--model", "mine:net", "--input", "2x1x4x4"]
    run(folder, "export", "measured.safetensors", *code, "--width", "3/4")
    run(folder, "export", "mixed.safetensors", *code)
    fjord.export_model(model, mixed, folder / "from-python.pt2", x, to="torch")
    files = {"measured-3of4": "3/4", "mixed": mixed, "from-python": mixed}
    for name, widths in files.items():
        found = torch.export.load(folder / f"{name}.pt2").module()(x)
        torch.testing.assert_close(found, model.cut(widths)(x))
    facts = {"fjord.json": ""}
    torch.export.load(folder / "mixed.pt2", extra_files=facts)
    assert json.loads(json.loads(facts["fjord.json"])["width"]) == {"*": "1", "1": "1/2"}


def test_training_on_one_place_is_opened_like_any_run(folder, monkeypatch):
    names: dict = {}
    exec(MINE, names)
    setting = CentralExperiment(
        name="alone", model=names["net"], data=names["data"], widths=["1/2", "1"], epochs=1
    )
    monkeypatch.setitem(central.RECIPES, "alone", lambda: setting)
    run(folder, "run", "alone", "--output", "alone", "--no-page")
    run(folder, "export", "alone", "--to", "torch", "--width", "1/2", "--output", "alone.pt2")
    x = torch.randn(3, 1, 4, 4)
    net = fjord.load_model(
        folder / "alone/model-1.safetensors", nn.Sequential(*_layers()), width="1/2"
    ).eval()
    torch.testing.assert_close(torch.export.load(folder / "alone.pt2").module()(x), net(x))
    assert "by layer" in run(folder, "search", "alone", "--macs", "80%")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["nested", "--to", "tflite", "--width", "1"],
            "--to tflite: is unknown; allowed: onnx, executorch, torch",
        ),
        (["nested", "--to", "torch", "--width", "1/3"], "width 1/3 is not one of 1/2, 1"),
        (
            ["nested", "--to", "torch", "--width", "1/2,1", "--output", "one.pt2"],
            "width '1/2,1' is not a fraction",
        ),
        (["nested", "--to", "torch"], "--width: give one of 1/2, 1, or --widths all"),
        (["nested", "--to", "torch", "--width", "1", "--widths", "all"], "give one of them"),
        (["nested", "--to", "torch", "--width", "1", "--step"], "a step needs recurrent layers"),
        (
            ["each", "--to", "torch", "--width", "3/4"],
            "the run trained a model for each of 1/2, 1 and no other",
        ),
        (
            ["nested", "--to", "torch", "--width", "1", "--output", "taken.pt2"],
            "--force: is needed to write over taken.pt2",
        ),
        (
            ["nested", "--to", "torch", "--width", "1", "--output", "no/net.pt2"],
            "the folder no does not exist",
        ),
        (
            ["nested", "--to", "torch", "--width", "1", "--output", "/proc/net.pt2"],
            "/proc/net.pt2: cannot be written",
        ),
        (
            ["cnn.safetensors", "--to", "torch", "--width", "1"],
            "holds the weights of a Sequential but not its code",
        ),
        (
            ["cnn.safetensors", "--to", "torch", "--width", "1", "--model", "rnn"],
            "whose tensors differ",
        ),
        (["short.safetensors", "--to", "torch", "--width", "1"], "not a complete safetensors file"),
        (
            ["none.safetensors", "--to", "torch", "--width", "1"],
            "there is no such run folder or file",
        ),
    ],
)
def test_mistakes_are_one_line_each(arguments, says, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["fjord", "export", *arguments])
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert sorted(p for p in folder.rglob("*") if "__pycache__" not in str(p)) == [
        p for p in before if "__pycache__" not in str(p)
    ]


def test_what_is_taken_or_unknown_is_said_before_any_data_is_made(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    made = lambda *_: pytest.fail("data was made")  # noqa: E731
    monkeypatch.setattr("fjord.cli.trained._load_data", made)
    for arguments, says in (
        (
            ["export", "nested", "--to", "torch", "--width", "1", "--output", "taken.pt2"],
            "--force: is needed to write over taken.pt2",
        ),
        (["latency", "none/0"], "none/0: there is no such run folder or file"),
    ):
        monkeypatch.setattr(sys, "argv", ["fjord", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert says in capsys.readouterr().err


def test_the_page_on_export_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        exec(code, {})
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.S)
    lines = [line.split("#")[0].split() for line in block.splitlines() if line.startswith("fjord ")]
    assert [line[1] for line in lines] == ["run", "export", "export"]
    for line in lines:
        if "onnx" not in line or not ONNX.args[0]:
            short = ["--set", "num_rounds=1", "--no-page"] if line[1] == "run" else []
            run(tmp_path, *line[1:], *short)
    assert len(list((tmp_path / "runs/demo/0").glob("*.pt2"))) == 5
