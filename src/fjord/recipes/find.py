"""Recipes by name, and those of a user's own file."""

import runpy
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fjord.experiment import Experiment, Setting, set_field
from fjord.recipes import paper
from fjord.recipes.demo import demo

RECIPES: dict[str, Callable[[], Experiment]] = {"demo": demo, **paper.RECIPES}


def find_recipe(name: str) -> Callable[[], Experiment]:
    """Return a recipe of the list, or `file.py` / `file.py:function` (by default the function `recipe`)."""
    if name in RECIPES:
        return RECIPES[name]
    path, _, function = name.partition(":")
    if not path.endswith(".py"):
        raise ValueError(
            f"recipe {name!r} is unknown; known: {', '.join(RECIPES)}, theorem1, or a file such as mine.py:recipe"
        )
    if not Path(path).is_file():
        raise ValueError(f"recipe {name!r}: there is no file {path}")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # what the file imports from beside it
    found = runpy.run_path(path).get(function or "recipe")
    if not callable(found):
        raise ValueError(f"recipe {name!r}: {path} has no function {function or 'recipe'}()")
    return lambda: _made(name, found)


def _made(name: str, function: Callable[[], Any]) -> Experiment:
    experiment = function()
    if not isinstance(experiment, Experiment):
        raise ValueError(f"recipe {name!r}: returned a {type(experiment).__name__}, not a fjord.Experiment")
    return experiment


def apply_settings(experiment: Setting, settings: Iterable[str]) -> Setting:
    """Return an experiment, or training on one place, with `key=value` settings."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: write it as key=value")
        experiment = set_field(experiment, key, text)
    return experiment


def lasting_setting(setting: str) -> str:
    """Return a setting that names a file as it can be found from any folder."""
    key, _, text = setting.partition("=")
    names_file = key == "tiers" and text.endswith((".json", ".csv"))
    return f"{key}={Path(text).resolve()}" if names_file or (key == "data.source" and Path(text).is_dir()) else setting


def lasting(name: str) -> str:
    """Return the name of a recipe as it can be found from any folder."""
    path, colon, function = name.partition(":")
    return name if name in RECIPES else f"{Path(path).resolve()}{colon}{function}"
