"""Recipes by name, and those of a user's own file."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from fjord.core.errors import SettingError, UserError, suggest_name
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import central, paper
from fjord.experiments.recipes.demo import demo
from fjord.experiments.settings import Settings, declared_settings, set_setting
from fjord.experiments.value_kinds import FILE_SUFFIXES

RECIPES: dict[str, Callable[[], Experiment]] = {"demo": demo, **paper.RECIPES}

MAIN_FILE = "recipe.py"
"""Where a user's own recipe lies in the folder that it is sent in."""
BESIDE_FOLDER = "beside"
"""Where in that folder the modules lie that the recipe imports from beside it."""


def find_recipe(name: str, sent: Path | None = None) -> Callable[[], Experiment]:
    """Return a recipe by name, or by `file.py` or `file.py:function` (by default `recipe`).

    If `sent`, a folder with the files of `recipe_sources`, holds the file, the file need not be
    where its name says.
    """
    if name in RECIPES:
        return RECIPES[name]
    function = find_function(name, sent)

    def make_experiment() -> Experiment:
        experiment = function()
        if not isinstance(experiment, Experiment):
            kind = type(experiment).__name__
            raise _recipe_error(f"returned a {kind}, not a fjord.Experiment", name)
        return experiment

    return make_experiment


def find_function(name: str, sent: Path | None = None) -> Callable[[], Any]:
    """Return a function of a user's file, by default the one called `recipe`."""
    path, _, function_name = name.partition(":")
    function_name = function_name or "recipe"
    if not path.endswith(".py"):
        raise _unknown_recipe(name)
    file, folder = _file_and_folder(path, sent)
    if not file.is_file():
        raise _recipe_error(f"cannot be found: there is no file {path}", name)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # for what the file imports from beside it
    # Also when sent, the file gets the path it came from: its data may lie beside it there.
    names: dict[str, Any] = {"__name__": "<recipe>", "__file__": path}
    exec(compile(file.read_bytes(), path, "exec"), names)
    function = names.get(function_name)
    if not callable(function):
        raise _recipe_error(f"cannot be found: {path} has no function {function_name}()", name)
    return function


def _recipe_error(message: str, name: str) -> UserError:
    return UserError(message, field="recipe", value=name)


def _unknown_recipe(name: str) -> UserError:
    if name.partition(".")[0] == "theorem1":
        command = f"python -m reproduction {name}"
        return UserError(
            f"{name} is not part of the package: in a clone of the repository, run `{command}`"
        )
    if name in central.RECIPES:
        return _recipe_error("is centralised; a federated recipe is needed", name)
    suggestion = suggest_name(name, [*RECIPES, *central.RECIPES])
    known = ", ".join(RECIPES)
    return _recipe_error(
        f"is unknown{suggestion}; known: {known}, or a file such as mine.py:recipe", name
    )


def _file_and_folder(path: str, sent: Path | None) -> tuple[Path, Path]:
    """Return the file to read, and the folder in which it finds modules."""
    if sent and (sent / MAIN_FILE).exists():
        return sent / MAIN_FILE, sent / BESIDE_FOLDER
    return Path(path), Path(path).resolve().parent


def recipe_sources(name: str) -> dict[str, Path]:
    """Return the files of a user's own recipe, by where they are sent.

    They are the recipe's own file, and the modules that it imported from beside it.
    """
    if name in RECIPES:
        return {}
    path = Path(name.partition(":")[0]).resolve()
    sources = {MAIN_FILE: path}
    for module_name, module in list(sys.modules.items()):
        part = _file_beside(path.parent, module_name, module)
        if part is not None and part.parts[0] != "fjord":
            sources[f"{BESIDE_FOLDER}/{part}"] = path.parent / part
    return sources


def _file_beside(folder: Path, name: str, module: ModuleType) -> Path | None:
    """Return a module's file within a folder, or None if it comes from elsewhere."""
    place = Path(*name.split("."))
    for part in (place.with_suffix(".py"), place / "__init__.py"):
        if getattr(module, "__file__", None) == str(folder / part):
            return part
    return None


def apply_settings(experiment: Settings, settings: Iterable[str]) -> Settings:
    """Return a federated or centralised experiment with `key=value` settings."""
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingError("must have the form key=value", field=key)
        experiment = set_setting(experiment, key, value)
    return experiment


def absolute_setting(text: str) -> str:
    """Return a `key=value` setting that names a file as it can be found from any folder."""
    key, _, value = text.partition("=")
    if _names_file(key, value) or (key == "data.source" and Path(value).is_dir()):
        return f"{key}={Path(value).resolve()}"
    return text


def _names_file(key: str, value: str) -> bool:
    info = declared_settings(Experiment).get(key)
    if info is None or info.kind is None:
        return False
    return info.kind.names_file and value.endswith(FILE_SUFFIXES)


def absolute_recipe(name: str) -> str:
    """Return the name of a recipe as it can be found from any folder."""
    if name in RECIPES:
        return name
    path, colon, function = name.partition(":")
    return f"{Path(path).resolve()}{colon}{function}"
