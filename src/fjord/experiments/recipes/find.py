"""Recipes by name, and those of a user's own file."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import paper
from fjord.experiments.recipes.demo import demo
from fjord.experiments.settings import Settings, set_setting

RECIPES: dict[str, Callable[[], Experiment]] = {"demo": demo, **paper.RECIPES}

MOVED = "{name} is not part of the package: in a clone of the repository, run `python -m reproduction {name}`"

MAIN, BESIDE = "recipe.py", "beside"
"""Where a user's own recipe lies in the folder it is sent in, and where what it imports from beside it."""


def find_recipe(name: str, sent: Path | None = None) -> Callable[[], Experiment]:
    """Return a recipe of the list, or `file.py` / `file.py:function` (by default the function `recipe`).

    If `sent`, the folder of `sources`, holds the file, it need not be where its name says.
    """
    if name in RECIPES:
        return RECIPES[name]
    found = find_function(name, sent)
    return lambda: _made(name, found)


def find_function(name: str, sent: Path | None = None) -> Callable[[], Any]:
    """Return a function of a user's file, by default the one called `recipe`."""
    path, _, function = name.partition(":")
    if not path.endswith(".py"):
        if name.partition(".")[0] == "theorem1":
            raise UserError(MOVED.format(name=name))
        known = ", ".join(RECIPES)
        raise UserError(
            f"recipe {name!r} is unknown; known: {known}, or a file such as mine.py:recipe"
        )
    file, folder = _where(path, sent)
    if not file.is_file():
        raise UserError(f"recipe {name!r}: there is no file {path}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # what the file imports from beside it
    # Also when sent, it is told the path it came from: its data may lie beside it there.
    names: dict[str, Any] = {"__name__": "<recipe>", "__file__": path}
    exec(compile(file.read_bytes(), path, "exec"), names)
    found = names.get(function or "recipe")
    if not callable(found):
        raise UserError(f"recipe {name!r}: {path} has no function {function or 'recipe'}()")
    return found


def _where(path: str, sent: Path | None) -> tuple[Path, Path]:
    """Return the file to read, and the folder in which it finds modules."""
    if sent and (sent / MAIN).exists():
        return sent / MAIN, sent / BESIDE
    return Path(path), Path(path).resolve().parent


def recipe_sources(name: str) -> dict[str, Path]:
    """Return the files of a user's own recipe, by where they are sent: its own, and what it imported from beside it."""
    if name in RECIPES:
        return {}
    path = Path(name.partition(":")[0]).resolve()
    found = {MAIN: path}
    for module, loaded in list(sys.modules.items()):
        place = Path(*module.split("."))
        for part in (place.with_suffix(".py"), place / "__init__.py"):
            if (
                getattr(loaded, "__file__", None) == str(path.parent / part)
                and part.parts[0] != "fjord"
            ):
                found[f"{BESIDE}/{part}"] = path.parent / part
    return found


def _made(name: str, function: Callable[[], Any]) -> Experiment:
    experiment = function()
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"recipe {name!r}: returned a {type(experiment).__name__}, not a fjord.Experiment"
        )
    return experiment


def apply_settings(experiment: Settings, settings: Iterable[str]) -> Settings:
    """Return an experiment, or training on one place, with `key=value` settings."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: write it as key=value")
        experiment = set_setting(experiment, key, text)
    return experiment


def absolute_setting(setting: str) -> str:
    """Return a setting that names a file as it can be found from any folder."""
    key, _, text = setting.partition("=")
    names_file = key in ("tiers", "clock", "load") and text.endswith((".json", ".csv"))
    return (
        f"{key}={Path(text).resolve()}"
        if names_file or (key == "data.source" and Path(text).is_dir())
        else setting
    )


def absolute_recipe(name: str) -> str:
    """Return the name of a recipe as it can be found from any folder."""
    path, colon, function = name.partition(":")
    return name if name in RECIPES else f"{Path(path).resolve()}{colon}{function}"
