"""Flower's command-line programs: where they are, and the environment they run in."""

import os
import shutil
import sysconfig
from pathlib import Path

from fjord.core.errors import UserError
from fjord.core.extras import install_hint

OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
"""Environment variables that keep Flower from using the network for anything but its messages."""


def script_path(name: str) -> str:
    """Return the path of one of Flower's programs, such as `flwr`."""
    path = shutil.which(name, path=_search_path())
    if path is None:
        raise UserError(f"Flower's program {name} was not found: {install_hint('flower')}")
    return path


def process_environment(flwr_home: Path, **variables: str) -> dict[str, str]:
    """Return this process's environment, with what Flower's programs need on one machine."""
    environment = {**os.environ, **OFFLINE}
    environment["PATH"] = _search_path()  # a SuperNode looks there for the programs that it starts
    direct = filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"])
    environment["NO_PROXY"] = ",".join(direct)
    environment["FLWR_HOME"] = str(flwr_home)
    return environment | variables


def _search_path() -> str:
    scripts = sysconfig.get_path("scripts")
    return os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
