"""What docs/fleet.md shows: its keys are accepted, its files parse, its options exist."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fjord.cli import fleet as commands
from fjord.engines.flower.programs import OFFLINE, process_environment, script_path

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)


def services() -> dict[str, dict]:
    (compose,) = blocks("yaml")
    return yaml.safe_load(compose)["services"]


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def test_the_certificates_and_keys_are_what_flower_takes(tmp_path):
    made = "\n".join(block for block in blocks("sh") if block.startswith(("openssl", "ssh-keygen")))
    subprocess.run(["bash", "-ec", made], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.crt", "server.crt"], cwd=tmp_path, check=True
    )
    key = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert load_ssh_public_key((tmp_path / "node.pub").read_bytes()) == key.public_key()


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_the_options_of_the_page_exist(program, tmp_path):
    shown = subprocess.run(
        [script_path(program), "--help"],
        env=process_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = "\n".join(blocks("sh") + blocks("ini") + blocks("")).replace("\\\n", " ").splitlines()
    used = set().union(*(options(line.partition(program)[2]) for line in lines if program in line))
    used |= set().union(
        *(
            options(" ".join(s["command"]))
            for s in services().values()
            if s["command"][0] == program
        )
    )
    assert len(used) >= 4
    assert used <= options(shown)


def test_the_compose_file_is_whole():
    found = services()
    assert set(found) == {"superlink", "phone-0", "phone-1"}
    for service in found.values():
        assert service["init"] is True
        assert {"FLWR_HOME", "FLWR_TELEMETRY_ENABLED"} <= service["environment"].keys()
        files = {volume.split(":")[1] for volume in service["volumes"]}
        assert set(re.findall(r"/secrets/[\w.-]+", " ".join(service["command"]))) <= files


def test_what_the_page_says_of_this_command_is_so():
    words = [
        shlex.split(line)
        for block in blocks("")
        for line in block.splitlines()
        if line.startswith("fjord fleet")
    ]
    assert {word[2] for word in words} == {"up", "status", "down"}
    known = {command.name for command in commands.app.registered_commands}
    assert known == set(re.findall(r"`fjord fleet (\w+)", PAGE))
    assert set(OFFLINE) - {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"} <= set(
        re.findall(r"FLWR_\w+", PAGE)
    )
