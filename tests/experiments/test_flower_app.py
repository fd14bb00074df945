"""The app that is sent to Flower: what goes with it, and what is said where Flower is missing."""

import shutil
import sys

import pytest

pytest.importorskip("flwr")

from flower_runs import RECIPE

from fjord.cli import main
from fjord.engines.flower.submit import write_app
from fjord.experiments.recipes.find import find_recipe, recipe_sources


def test_the_app_that_is_written_names_what_exists(tmp_path):
    write_app(tmp_path)
    for side in ("server", "client"):
        names: dict = {"__file__": str(tmp_path / "fjord_app" / f"{side}.py")}
        exec((tmp_path / "fjord_app" / f"{side}.py").read_text(), names)
        assert type(names["app"]).__name__ == f"{side.title()}App"
    assert 'recipe = "demo"' in (tmp_path / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "--engine", "flower-sim"], "--engine flower-sim"),
        (["run", "--engine", "flower", "--superlink", "fleet"], "--engine flower"),
        (["fleet", "status"], "fjord fleet"),
        (["app"], "fjord app"),
    ],
)
def test_where_flower_is_missing_the_message_says_what_to_install(
    words, what, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "flwr", None)  # as if it could not be found
    monkeypatch.setattr(sys, "argv", ["fjord", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main()
    wanted = (
        f"fjord: {what} needs Flower; install it with: pip install 'fjord-fl[flower]', "
        "or in a clone: "
    )
    assert capsys.readouterr().err.startswith(wanted)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_is_sent_with_what_it_imported_from_beside_it_and_nothing_else(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = tmp_path / "mine"
    (mine / "parts").mkdir(parents=True)
    (mine / "test_mine.py").write_text(
        f"import parts.depths, torch, fjord\n{RECIPE}\n"
    )  # Flower would leave test_*.py out
    (mine / "parts" / "__init__.py").touch()
    (mine / "parts" / "depths.py").write_text("DEPTH = 2\n")
    (mine / "secrets.py").write_text("KEY = 1\n")
    name = f"{mine / 'test_mine.py'}:recipe"
    find_recipe(name)
    files = recipe_sources(name)
    assert set(files) == {"recipe.py", "beside/parts/__init__.py", "beside/parts/depths.py"}
    write_app(tmp_path / "app", files)
    for module in ("parts", "parts.depths"):
        monkeypatch.delitem(sys.modules, module)
    shutil.rmtree(mine)
    sys.path.remove(str(mine))
    sent = tmp_path / "app" / "fjord_app" / "sent"
    assert find_recipe(name, sent)().name == "tiny"
    assert sys.modules["parts.depths"].__file__ == str(sent / "beside" / "parts" / "depths.py")
    with pytest.raises(ValueError, match="there is no file"):
        find_recipe(name)
    assert recipe_sources("demo") == {}
