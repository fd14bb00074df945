"""The folder of a fleet: claimed, furnished with keys and a configuration, and left to one command at a time."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fjord.core.errors import UserError
from fjord.engines.flower.processes import PROC

NOTE = "# Made by fjord fleet: private keys, logs, a database.\n*\n"
ROOMS = ("flwr", "certificates", "keys", "logs", "home", "work")


def claim_folder(folder: Path) -> None:
    """Make the folder, or take it where it is empty or was made by `fjord fleet`."""
    if folder.exists() and not is_ours(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--folder {folder}: holds other things; name a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / ".gitignore").write_text(NOTE)


def prepare_folder(folder: Path, address: str, num_keys: int) -> None:
    """Clear what an earlier fleet left; describe the SuperLink for `flwr`, and make certificates if there are keys."""
    for room in ROOMS:
        shutil.rmtree(folder / room, ignore_errors=True)
    for file in folder.glob("superlink.db*"):
        file.unlink()
    for room in ("flwr", "logs"):
        (folder / room).mkdir()
    trust = "insecure = true"
    if num_keys:
        from fjord.engines.flower.keys import make_certificates, make_node_key

        make_certificates(folder / "certificates", ["localhost", address.rpartition(":")[0]])
        for k in range(num_keys):
            make_node_key(folder / "keys" / f"node-{k}")
        trust = f"root-certificates = {json.dumps(str(folder / 'certificates' / 'ca.crt'))}"
    config = (
        f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "{address}"\n{trust}\n'
    )
    (folder / "flwr" / "config.toml").write_text(config)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other `fjord fleet` commands out of this folder meanwhile."""
    if not (PROC / "self" / "stat").exists():
        raise UserError(
            "fjord fleet finds its processes in /proc, which only Linux has; docs/fleet.md starts them by hand"
        )
    if not is_ours(folder):
        yield  # there is nothing to keep apart, and nothing may be written
        return
    try:
        with FileLock(folder / "fleet.lock", timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"--folder {folder}: another fjord fleet command is at work there"
        ) from None


def is_ours(folder: Path) -> bool:
    """Say whether a folder was made by `fjord fleet`, and so may be written in and cleared."""
    note = folder / ".gitignore"
    return note.is_file() and note.read_text() == NOTE
