"""What the README says is run, with fewer rounds and epochs, and its links lead somewhere."""

import re
from pathlib import Path

import commands
import pytest

from fjord.core.width import parse_width
from fjord.experiments.recipes import paper
from fjord.federated.methods import ClientContext

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the README's Python was run, from top to bottom."""
    path = tmp_path_factory.mktemp("readme")
    files = [block for block in blocks("python") if re.match(r"# \w+\.py\n", block)]
    for block in files:  # a block that begins with a file's name is that file
        (path / block.split()[1]).write_text(block)
    rest = "\n".join(block for block in blocks("python") if block not in files)
    assert "epochs=6" in rest
    (path / "readme.py").write_text(rest.replace("epochs=6", "epochs=2"))
    done = commands.Python("readme.py", cwd=path).finish()
    assert done.returncode == 0, done.stderr
    (path / "output.txt").write_text(done.stdout)
    return path


def test_the_python_of_the_readme_runs(folder):
    output = (folder / "output.txt").read_text()
    assert "stem.weight[0]" in output
    assert re.search(r"^2/5 \d+\.\d%$", output, re.M)
    assert (folder / "net.safetensors").is_file()


def test_the_commands_of_the_readme_run(folder):
    (folder / "mypackage.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3))\n"
    )
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    written = [line.split() for line in lines if line.startswith("fjord ")]
    assert len(written) == 22
    # Others run these: test_deployment.py, test_flower.py, and those of the pages on devices and inference.
    elsewhere = [
        words
        for words in written
        if {"fleet", "flower", "flower-sim", "profile", "search"} & set(words)
    ]
    assert len(elsewhere) == 5
    chosen = [words for words in written if words not in elsewhere]
    real = [command for command in chosen if paper.RECIPES.keys() & set(command[2:3])]
    assert len(real) == 3
    for command in chosen:
        if command in real:
            continue  # test_tasks.py runs the recipes, on real data and on small folders
        short = ["--set", "num_rounds=2", "--set", "eval_every=2"] if command[1] == "run" else []
        done = commands.fjord(*command[1:], *short, cwd=folder)
        assert done.returncode == 0, (command, done.stderr)
    for page in ("runs/demo/0/report.html", "compare.html", "runs/mine/0/report.html"):
        assert (folder / page).is_file()


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))],
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_table_of_the_readme_is_what_the_counter_gives():
    import fjord
    from fjord.models.catalog import find_model

    for name in ("cnn", "rnn"):
        entry = find_model(name)
        rows = fjord.measure_footprints(
            fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze), entry.inputs
        )
        for counts in ([r.macs for r in rows], [r.weights for r in rows]):
            assert " | ".join(f"{n:,}" for n in counts) in README


def test_the_python_of_the_page_on_data_runs():
    names: dict[str, object] = {}
    exec(
        "\n".join(
            re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.S)
        ),
        names,
    )
    assert names["data"].num_clients == 20


def test_the_python_of_the_page_on_federated_training_runs():
    page = (ROOT / "docs" / "federated.md").read_text()
    names: dict[str, object] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    import fjord

    grant = ClientContext(*map(parse_width, ("3/5", "1", "1/5")), fjord.uniform_widths(5), 0, None)
    assert names["mine"].sample(grant) == fjord.WidthSpace.of({"1/5": 1, "3/5": 3})
    assert [str(names["devices"](10, 0).ceiling(3, t)) for t in (21, 23)] == ["1/5", "1/5"]
