"""Hands a run to a SuperLink: writes the Flower app, starts it with `flwr run`, and follows it to its end."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from fjord.core.errors import UserError
from fjord.engines.flower.fleet import OFFLINE, script_path

Value = str | float | bool
DEFAULTS: Mapping[str, Value] = {
    "recipe": "demo",
    "settings": "",
    "output": "",
    "resume": False,
    "deadline": 600.0,
    "min-replies": 1,
}
"""All that `flwr run --run-config` may change; settings are key=value words, as after --set."""
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fjord-app"
version = "0.1.0"
description = "Runs a recipe of fjord-fl, which has to be installed on the SuperLink's machine and on every node"
license = "Apache-2.0"
# Not fjord-fl: a SuperLink may install what stands here for every run, and would fetch torch each time.
dependencies = ["flwr>=1.41,<2"]

[tool.hatch.build.targets.wheel]
packages = ["fjord_app"]

[tool.flwr.app]
publisher = "fjord"

[tool.flwr.app.components]
serverapp = "fjord_app.server:app"
clientapp = "fjord_app.client:app"

[tool.flwr.app.config]
"""


SIDE = """\
\"\"\"The {side}.\"\"\"

from pathlib import Path

from fjord.experiments.flower_app import {side}_of

app = {side}_of(Path(__file__).with_name("sent"))
"""


def write_app(folder: Path, files: Mapping[str, Path] = MappingProxyType({})) -> None:
    """Write the Flower app: a folder that `flwr run` takes, with the files of a recipe."""
    package = folder / "fjord_app"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT + _toml(DEFAULTS))
    (package / "__init__.py").write_text('"""A recipe of fjord-fl as a Flower app."""\n')
    for side in ("server", "client"):
        (package / f"{side}.py").write_text(SIDE.format(side=side))
    for name, file in files.items():
        place = package / "sent" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def submit_run(superlink: str, config: Mapping[str, Value], files: Mapping[str, Path]) -> str:
    """Run the app on a SuperLink of FLWR_HOME's config.toml, showing its log; return how the run ended.

    The files of the recipe go with it: nodes run what the SuperLink sends in any case.
    """
    with TemporaryDirectory() as made:
        folder = Path(made)  # an empty place to start from, too: Python looks for modules there
        write_app(folder / "app", files)
        (folder / "run.toml").write_text(_toml({**DEFAULTS, **config}))
        words = ["run", "app", superlink, "--stream", "--run-config", "run.toml"]
        process = subprocess.Popen(
            [script_path("flwr"), *words],
            cwd=folder,
            env=_env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        run_id = None
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                run_id = run_id or _started(line)
        except KeyboardInterrupt:
            if run_id:
                _flwr(folder, "stop", run_id, superlink)
            raise
        finally:
            process.terminate()
            process.wait()
        if not run_id:
            raise UserError(
                f"--superlink {superlink}: the run was not started; what flwr said stands above "
                "(the SuperLink of `fjord fleet up` is known where FLWR_HOME is set as it says)"
            )
        return _status(_flwr(folder, "list", superlink, "--run-id", run_id, "--format", "json"))


def _started(line: str) -> str | None:
    found = re.search(r"started run (\d+)", line)
    return found[1] if found else None


def _flwr(folder: Path, *words: str) -> str:
    return subprocess.run(
        [script_path("flwr"), *words],
        cwd=folder,
        env=_env(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout


def _status(listed: str) -> str:
    try:
        return str(json.loads(listed)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def _env() -> dict[str, str]:
    return {**os.environ, **OFFLINE}


def _toml(values: Mapping[str, Value]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
