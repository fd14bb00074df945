"""Exported files: they agree with their source, say what they are, and bad ones are not kept."""

import contextlib
import hashlib
import importlib.util
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fjord
from fjord.central.setting import Central
from fjord.cli import main
from fjord.elastic.storage import write_cut
from fjord.exports import formats, trial
from fjord.exports.plain import fixed
from fjord.exports.trial import difference, random_inputs
from fjord.models.catalog import find_model
from fjord.recipes import central
from motifs import MOTIFS


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


ONNX = needs("onnx", "onnxruntime", "onnxscript")
EXECUTORCH = needs("executorch")
INPUTS = {"cnn": None, "rnn": "2x3", "resnet18": "2x3x16x16"}


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    """Latency is what benchmarks are for."""
    monkeypatch.setattr(trial, "SECONDS", 0.0)
    monkeypatch.setattr(trial, "LEAST_CALLS", 1)


def model_of(name: str) -> tuple[fjord.ElasticModel, tuple]:
    """A paper model with weights and statistics that no layer could have by default."""
    torch.manual_seed(3)
    entry = find_model(name, INPUTS[name])
    model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    with torch.no_grad():
        for key, tensor in model.tensors.items():
            if "running" in key or (".bn" in key and "weight" in key):
                tensor.uniform_(0.5, 1.5)
            elif "bias" in key:
                tensor.uniform_(-0.2, 0.2)
    return model, entry.inputs


def fresh(like: torch.Tensor, batch: int) -> torch.Tensor:
    shape = (batch, *like.shape[1:])
    return torch.randn(shape) if like.is_floating_point() else torch.randint(0, 90, shape)


def in_onnx_runtime(path, *tensors: torch.Tensor) -> list[torch.Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return [torch.from_numpy(a) for a in session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})]


@ONNX
@pytest.mark.parametrize(
    ("name", "widths"),
    [("cnn", fjord.uniform(5).widths), ("rnn", ("1/5", "3/5", "1")), ("resnet18", ("1/5", "3/5"))],
)
def test_every_width_agrees_with_its_source_in_onnx_runtime(name, widths, tmp_path):
    model, inputs = model_of(name)
    sizes = []
    for i, width in enumerate(widths):
        done = fjord.export(model, width, tmp_path / f"{i}.onnx", inputs)
        assert done.difference <= 1e-4
        assert done.open_batch
        for batch in (1, 5):
            x = fresh(inputs[0], batch)
            (found,) = in_onnx_runtime(done.path, x)
            torch.testing.assert_close(found, model.cut(width).eval()(x), atol=1e-4, rtol=0)
        sizes.append(done.bytes)
    assert sizes == sorted(sizes)
    assert list(tmp_path.glob(".*")) == []


@ONNX
def test_the_file_says_its_width_source_and_inputs_and_nothing_of_this_machine(tmp_path):
    import onnx

    model, _ = model_of("cnn")
    model.save(tmp_path / "net.safetensors")
    run(tmp_path, "export", "net.safetensors", "--model", "cnn", "--width", "40%", "--to", "onnx")
    path = tmp_path / "net-2of5.onnx"
    loaded = onnx.load(path)
    facts = json.loads({p.key: p.value for p in loaded.metadata_props}["fjord"])
    assert facts["width"] == "2/5"
    assert facts["source_sha256"] == hashlib.sha256((tmp_path / "net.safetensors").read_bytes()).hexdigest()
    assert facts["inputs"] == [{"name": "input", "shape": ["batch", 1, 28, 28], "dtype": "float32"}]
    assert [d.dim_param for d in loaded.graph.input[0].type.tensor_type.shape.dim][:1] == ["batch"]
    assert b"site-packages" not in path.read_bytes()
    assert b".py" not in path.read_bytes()


def run(folder, *arguments: str) -> str:
    """What a command prints that is given in a folder, and ends well."""
    text = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(text), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fjord", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return text.getvalue()


def test_a_torch_file_is_loaded_without_this_package(tmp_path):
    model, inputs = model_of("rnn")
    done = fjord.export(model, "2/5", tmp_path / "net.pt2", inputs, to="torch")
    x = fresh(inputs[0], 4)
    torch.save({"x": x, "y": model.cut("2/5").eval()(x)}, tmp_path / "pair.pt")
    code = (
        "import sys, torch; d = torch.load('pair.pt'); y = torch.export.load('net.pt2').module()(d['x']);"
        "torch.testing.assert_close(y, d['y']); assert 'fjord' not in sys.modules"
    )
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)
    assert done.difference <= 1e-6
    assert b".py" not in done.path.read_bytes()


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=ONNX)])
def test_a_model_cut_from_its_graph_is_exported(to, tmp_path):
    motif = MOTIFS["sizes in forward"]
    torch.manual_seed(0)
    inputs = tuple(t.float() for t in motif.inputs())
    model = fjord.elasticize(motif.build(), inputs)
    assert model.blueprint.route == "graph"
    done = fjord.export(model, "2/5", tmp_path / "net", inputs, to=to)
    assert done.open_batch
    assert done.difference <= 1e-5


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=ONNX)])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_step_carries_its_states(kind, to, tmp_path):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = kind(4, 10, num_layers=2, batch_first=True)
            self.head = nn.Linear(10, 3)

        def forward(self, x):
            return self.head(self.cells(x)[0][:, -1])

    torch.manual_seed(1)
    inputs = (torch.randn(2, 5, 4),)
    model = fjord.elasticize(Last(), inputs)
    done = fjord.export(model, "3/5", tmp_path / "net", inputs, to=to, step=True)
    assert "states in, states out" in done.note
    assert done.difference <= 1e-5


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0])


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=ONNX)])
def test_an_axis_of_time_is_not_taken_for_one_of_examples(to, tmp_path):
    x = torch.randn(5, 2, 4)
    model = fjord.elasticize(TimeFirst(), x)
    done = fjord.export(model, "2/5", tmp_path / "net", x, to=to)
    assert not done.open_batch
    assert [i["shape"] for i in done.inputs] == [[5, 2, 4]]
    assert done.macs == 10 * (4 * 4 * (4 + 4) + 3 * 4 + 16 * 4)
    runner, _ = formats.FORMATS[to].open_file(done.path)
    torch.testing.assert_close(runner([x])[0], model.cut("2/5").eval()(x))


def test_steps_of_a_model_with_time_first_take_one_example_where_a_format_fixes_them(tmp_path, monkeypatch):
    honest = formats.FORMATS["torch"]
    alone = replace(honest, write=lambda plain, *rest: honest.write(fixed(plain), *rest), unrolls=True)
    monkeypatch.setitem(formats.FORMATS, "torch", alone)
    x = torch.randn(5, 2, 4)
    done = fjord.export(fjord.elasticize(TimeFirst(), x), "2/5", tmp_path / "net", x, to="torch")
    assert [i["shape"] for i in done.inputs] == [[1, 1, 4], [1, 1, 4], [1, 1, 4]]


@EXECUTORCH
@pytest.mark.parametrize("name", ["cnn", "rnn"])
def test_executorch_agrees_with_its_source(name, tmp_path):
    from executorch.runtime import Runtime

    model, inputs = model_of(name)
    done = fjord.export(model, "2/5", tmp_path / "net.pte", inputs, to="executorch")
    assert done.difference <= 1e-4
    method = Runtime.get().load_program(done.path).load_method("forward")
    net, x = model.cut("2/5").eval(), fresh(inputs[0], 1)
    if name == "cnn":
        found = method.execute([x])[0]
    else:
        states, outputs = [torch.zeros(2, 1, 52), torch.zeros(2, 1, 52)], []
        for i in range(x.shape[1]):
            output, *states = (t.clone() for t in method.execute([x[:, i : i + 1], *states]))
            outputs.append(output)
        found = torch.cat(outputs, 1)
    torch.testing.assert_close(found, net(x), atol=1e-4, rtol=0)


def test_the_page_on_export_runs(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
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


def lying(by: float) -> formats.Format:
    """A format whose files are off by a number."""
    honest = formats.FORMATS["torch"]

    def open_file(path):
        runner, facts = honest.open_file(path)
        return lambda tensors: [t + by for t in runner(tensors)], facts

    return replace(honest, open_file=open_file)


@pytest.mark.parametrize("by", [3e-4, math.nan])
def test_a_file_that_is_off_is_not_kept(by, tmp_path, monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "torch", lying(by))
    model, inputs = model_of("cnn")
    kept = tmp_path / "net.pt2"
    kept.write_text("what was here before")
    with pytest.raises(ValueError, match=f"differs from the source model by {by:.1e}, more than 1e-04"):
        fjord.export(model, "1/5", kept, inputs, to="torch", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt2"]
    assert kept.read_text() == "what was here before"


def test_an_error_within_the_tolerance_passes(tmp_path, monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "torch", lying(5e-5))
    model, inputs = model_of("cnn")
    done = fjord.export(model, "1/5", tmp_path / "net.pt2", inputs, to="torch")
    assert done.difference == pytest.approx(5e-5, rel=0.1)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6), st.floats(0, 1, width=32))
def test_difference_is_absolute_up_to_one_and_relative_above(values, by):
    wanted = torch.tensor(values, dtype=torch.float64)
    expected = float((wanted + by - wanted).abs().max()) / max(1.0, max(map(abs, values)))
    assert difference([wanted + by], [wanted]) == pytest.approx(expected)
    assert difference([wanted[None]], [wanted]) == math.inf


def test_random_tokens_are_ones_the_model_knows():
    entry = find_model("rnn", "2x50")
    (x,) = random_inputs(entry.model, entry.inputs, 7, seed=1)
    assert x.shape == (7, 50)
    assert 0 <= int(x.min()) < int(x.max()) < 90
    assert torch.equal(x, random_inputs(entry.model, entry.inputs, 7, seed=1)[0])


MINE = """
import torch
from torch import nn
import fjord

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4))

def data(seed):
    x, y = torch.randn(60, 1, 4, 4), torch.arange(60) % 4
    return fjord.partition((x, y), torch.arange(60) % 6, (x, y))

def recipe():
    return fjord.Experiment(
        name="mine", model=net, data=data, num_rounds=1, cohort_size=3, tiers="uniform-2", widths=["1/2", "1"]
    )

def odd():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 10), nn.Linear(10, 2)

        def forward(self, x):
            return torch.special.bessel_j0(self.two(torch.relu(self.one(x))))

    return Odd(), torch.randn(2, 4)
"""


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
    text = run(folder, "export", name, "--to", "torch", "--widths", "all", "--output", f"{name}-files")
    files = sorted((folder / f"{name}-files").iterdir())
    assert [p.name for p in files] == ["model-1.pt2", "model-1of2.pt2"]
    for words in ("any batch", "one thread", "model-1of2.pt2", "MACs"):
        assert words in text
    x = torch.randn(3, 1, 4, 4)
    for path, width in zip(files, ("1", "1/2"), strict=True):
        stored = folder / name / ("model.safetensors" if name == "nested" else f"{path.stem}.safetensors")
        net = fjord.load(stored, nn.Sequential(*_layers()), width=width).eval()
        torch.testing.assert_close(torch.export.load(path).module()(x), net(x))


def _layers() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4)]


def test_what_was_recalibrated_is_exported_and_what_was_searched(folder):
    x = torch.randn(8, 1, 4, 4)
    model = fjord.load(folder / "nested/model.safetensors", nn.Sequential(*_layers())).eval()
    mixed = {"*": "1", "1": "1/2"}
    for widths in ("3/4", mixed):
        fjord.recalibrate(model, widths, [x])
    model.save(folder / "measured.safetensors")
    write_cut(folder / "measured.safetensors", mixed, folder / "mixed.safetensors")
    code = ["--to", "torch", "--model", "mine:net", "--input", "2x1x4x4"]
    run(folder, "export", "measured.safetensors", *code, "--width", "3/4")
    run(folder, "export", "mixed.safetensors", *code)
    fjord.export(model, mixed, folder / "from-python.pt2", x, to="torch")
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
    setting = Central(name="alone", model=names["net"], data=names["data"], widths=["1/2", "1"], epochs=1)
    monkeypatch.setitem(central.RECIPES, "alone", lambda: setting)
    run(folder, "run", "alone", "--output", "alone", "--no-page")
    run(folder, "export", "alone", "--to", "torch", "--width", "1/2", "--output", "alone.pt2")
    x = torch.randn(3, 1, 4, 4)
    net = fjord.load(folder / "alone/model-1.safetensors", nn.Sequential(*_layers()), width="1/2").eval()
    torch.testing.assert_close(torch.export.load(folder / "alone.pt2").module()(x), net(x))
    assert "by layer" in run(folder, "search", "alone", "--macs", "80%")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nested", "--to", "tflite", "--width", "1"], "--to tflite: unknown; allowed are onnx, executorch, torch"),
        (["nested", "--to", "torch", "--width", "1/3"], "width 1/3 is not one of 1/2, 1"),
        (["nested", "--to", "torch", "--width", "1/2,1", "--output", "one.pt2"], "width '1/2,1' is not a fraction"),
        (["nested", "--to", "torch"], "--width: give one of 1/2, 1, or --widths all"),
        (["nested", "--to", "torch", "--width", "1", "--widths", "all"], "give one of them"),
        (["nested", "--to", "torch", "--width", "1", "--step"], "a step needs recurrent layers"),
        (["each", "--to", "torch", "--width", "3/4"], "the run trained a model for each of 1/2, 1 and no other"),
        (["nested", "--to", "torch", "--width", "1", "--output", "taken.pt2"], "--force writes over it"),
        (["nested", "--to", "torch", "--width", "1", "--output", "no/net.pt2"], "the folder no does not exist"),
        (["nested", "--to", "torch", "--width", "1", "--output", "/proc/net.pt2"], "/proc/net.pt2: cannot be written"),
        (["cnn.safetensors", "--to", "torch", "--width", "1"], "holds the weights of a Sequential but not its code"),
        (["cnn.safetensors", "--to", "torch", "--width", "1", "--model", "rnn"], "whose tensors differ"),
        (["short.safetensors", "--to", "torch", "--width", "1"], "not a whole safetensors file"),
        (["none.safetensors", "--to", "torch", "--width", "1"], "there is no such run folder or file"),
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


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(ValueError, match=r"--to onnx: not installed: onnxruntime: pip install 'fjord-fl\[export\]'"):
        formats.find_format("onnx")


@pytest.mark.parametrize("to", [pytest.param("onnx", marks=ONNX), pytest.param("executorch", marks=EXECUTORCH)])
def test_an_operation_that_a_format_lacks_is_named(to, tmp_path):
    names: dict = {}
    exec(MINE, names)
    net, x = names["odd"]()
    model = fjord.elasticize(net, x)
    with pytest.raises(ValueError, match=f"--to {to}: .*bessel_j0"):
        fjord.export(model, "2/5", tmp_path / "net", x, to=to)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_gives_no_numbers_is_refused(tmp_path):
    model, inputs = model_of("cnn")
    with torch.no_grad():
        model.tensors["0.weight"].fill_(math.nan)
    with pytest.raises(ValueError, match="gives numbers that are not finite"):
        fjord.export(model, "2/5", tmp_path / "net.pt2", inputs, to="torch")
    assert list(tmp_path.iterdir()) == []


def test_what_is_taken_or_unknown_is_said_before_any_data_is_made(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    made = lambda *_: pytest.fail("data was made")  # noqa: E731
    monkeypatch.setattr("fjord.cli.trained._data", made)
    for arguments, says in (
        (["export", "nested", "--to", "torch", "--width", "1", "--output", "taken.pt2"], "--force writes over it"),
        (["latency", "none/0"], "none/0: there is no such run folder or file"),
    ):
        monkeypatch.setattr(sys, "argv", ["fjord", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert says in capsys.readouterr().err
