"""Hands a run to a SuperLink: writes the Flower app, starts it with `flwr run` and follows it."""

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
from fjord.engines.flower.programs import OFFLINE, script_path

ConfigValue = str | float | bool
DEFAULTS: Mapping[str, ConfigValue] = {
    "recipe": "demo",
    "settings": "",
    "output": "",
    "resume": False,
    "deadline": 600.0,
    "min-replies": 1,
}
"""All that `flwr run --run-config` may change; settings are words of the form key=value."""
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fjord-app"
version = "0.1.0"
description = "Runs a recipe of fjord-fl, which must be installed on the server and on all nodes"
license = "Apache-2.0"
# Not fjord-fl: a SuperLink may install these for every run, and would fetch torch each time.
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
APP_MODULE = """\
\"\"\"The {side}.\"\"\"

from pathlib import Path

from fjord.experiments.flower_app import {side}_of

app = {side}_of(Path(__file__).with_name("sent"))
"""


def write_app(folder: Path, files: Mapping[str, Path] = MappingProxyType({})) -> None:
    """Write the Flower app: a folder for `flwr run`, with the files of a recipe."""
    package = folder / "fjord_app"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT + _to_toml(DEFAULTS))
    (package / "__init__.py").write_text('"""A recipe of fjord-fl as a Flower app."""\n')
    for side in ("server", "client"):
        (package / f"{side}.py").write_text(APP_MODULE.format(side=side))
    for name, file in files.items():
        target = package / "sent" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def submit_run(
    superlink: str,
    config: Mapping[str, ConfigValue],
    files: Mapping[str, Path],
) -> str:
    """Run the app on a SuperLink of FLWR_HOME's config.toml, and print its log; return its status.

    The files of the recipe are sent with it: nodes run what the SuperLink sends in any case.
    """
    with TemporaryDirectory() as temporary:
        # It is also an empty folder to start from: Python looks for modules there.
        folder = Path(temporary)
        write_app(folder / "app", files)
        (folder / "run.toml").write_text(_to_toml({**DEFAULTS, **config}))
        run_id = _follow_run(folder, superlink)
        if run_id is None:
            reason = (
                "did not start the run; the output of flwr above says why "
                "(FLWR_HOME must be set as `fjord fleet up` printed it, if that started the fleet)"
            )
            raise UserError(reason, field="superlink", value=superlink)
        listing = _run_flwr(
            folder,
            "list",
            superlink,
            "--run-id",
            run_id,
            "--format",
            "json",
        )
        return _run_status(listing)


def _follow_run(folder: Path, superlink: str) -> str | None:
    """Start the run and print its log to the end; return the run's id, if it was started."""
    words = ["run", "app", superlink, "--stream", "--run-config", "run.toml"]
    process = subprocess.Popen(
        [script_path("flwr"), *words],
        cwd=folder,
        env={**os.environ, **OFFLINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    run_id = None
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            match = re.search(r"started run (\d+)", line)
            if match and run_id is None:
                run_id = match[1]
    except KeyboardInterrupt:
        if run_id is not None:
            _run_flwr(folder, "stop", run_id, superlink)
        raise
    finally:
        process.terminate()
        process.wait()
    return run_id


def _run_flwr(folder: Path, *words: str) -> str:
    """Run `flwr WORDS` and return what it prints."""
    command = [script_path("flwr"), *words]
    env = {**os.environ, **OFFLINE}
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def _run_status(listing: str) -> str:
    try:
        return str(json.loads(listing)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def _to_toml(values: Mapping[str, ConfigValue]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
