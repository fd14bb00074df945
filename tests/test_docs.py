"""The README's code and commands run, with fewer rounds and epochs; links and names exist."""

import pydoc
import re
from pathlib import Path

import commands
import pytest
import torch

import fjord
from fjord.core.width import parse_width
from fjord.experiments.recipes import paper
from fjord.federated.methods import ClientContext
from fjord.models.catalog import find_model

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def run_page(name: str) -> dict[str, object]:
    """Run the Python of a page from top to bottom; return the names it defines."""
    page = (ROOT / "docs" / name).read_text()
    names: dict[str, object] = {}
    exec("\n".join(blocks("python", page)), names)
    return names


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
        "from torch import nn\n\n\n"
        "def build():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3))\n"
    )
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    written = [line.split() for line in lines if line.startswith("fjord ")]
    assert len(written) == 22
    # Other tests run these: tests/engines/flower, and those of the pages on devices and inference.
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
            continue  # tests/experiments/test_recipes.py runs them, on real and on small data
        short = ["--set", "num_rounds=2", "--set", "eval_every=2"] if command[1] == "run" else []
        done = commands.fjord(*command[1:], *short, cwd=folder)
        assert done.returncode == 0, (command, done.stderr)
    for page in ("runs/demo/0/report.html", "compare.html", "runs/mine/0/report.html"):
        assert (folder / page).is_file()


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_lead_somewhere(page):
    path = ROOT / page
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        text = (path.parent / target if target else path).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        assert heading in [anchor(line) for line in headings], f"{target}#{heading}"


def new_files(text: str) -> list[str]:
    """Return the files that a page tells to create: a path and a colon before a block of Python."""
    return re.findall(r"`([\w/]+\.py)`:\n\n```python\n\"\"\"", text)


@pytest.mark.parametrize("page", PAGES)
def test_names_and_paths_of_the_pages_exist(page):
    text = (ROOT / page).read_text()
    created = new_files(text)
    created_modules = [path.removesuffix(".py").replace("/", ".") for path in created]
    for name in re.findall(r"\bfjord(?:\.[A-Za-z_]\w*)+", text):
        if name != "fjord.json" and f"src.{name}" not in created_modules:
            assert pydoc.locate(name) is not None, name
    for path in re.findall(r"`((?:src|tests|reproduction|benchmarks)/[\w./]+)`", text):
        if path not in created and "ROOM" not in path:
            assert (ROOT / path).exists(), path


def test_the_table_of_footprints_is_what_the_counter_gives():
    page = (ROOT / "docs" / "elastic.md").read_text()
    for name in ("cnn", "rnn"):
        entry = find_model(name)
        model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
        rows = fjord.measure_footprints(model, entry.inputs)
        macs = [f"{row.macs:,}" for row in rows]
        weights = [f"{row.weights:,}" for row in rows]
        assert " | ".join(macs) in page
        assert " | ".join(weights) in page


def test_the_python_of_the_page_on_data_runs():
    names = run_page("data.md")
    assert names["data"].num_clients == 20


def test_the_python_of_the_page_on_federated_training_runs():
    names = run_page("federated.md")
    context = ClientContext(
        client_id=0,
        ceiling=parse_width("3/5"),
        target=parse_width("1"),
        lowest=parse_width("1/5"),
        space=fjord.uniform_widths(5),
        round_index=0,
        generator=torch.Generator(),
    )
    assert names["mine"].sample(context) == fjord.WidthSpace.of({"1/5": 1, "3/5": 3})
    assert [str(names["devices"](10, 0).ceiling(3, t)) for t in (21, 23)] == ["1/5", "1/5"]
