"""The Flower engine: the weights of the in-process engine, over a grid, over Ray, after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from commands import wait_until
from flower_runs import PATIENCE, assert_same, in_process, over_grid, recipe_file  # noqa: F401
from local_grid import LocalGrid
from network import cut_off

import fjord
from fjord.engines.flower.client import client_app
from fjord.engines.flower.run_spec import RunSpec
from fjord.experiments.flower_app import make_runtime, serve_run
from fjord.experiments.runs import RunFolder

METHODS = [
    ("method=fjord-kd",),
    ("method=fedrolex", "momentum=0.9"),
    ("method=fjord-efd", "prox=0.1", "busy=1/2"),
    ("method=efd", "widths=uniform-2", "tiers=uniform-2"),
    ("scaffold=true", "server=fedadam"),
    ("nova=true", "norms=shared"),
]


@pytest.mark.parametrize("settings", METHODS, ids=" ".join)
def test_a_grid_gives_the_weights_of_the_in_process_engine_bit_for_bit(recipe, tmp_path, settings):
    wanted = in_process(recipe, tmp_path / "here", settings)
    found = over_grid(recipe, tmp_path / "there", settings)
    assert_same(found, wanted)
    assert all(row["engine"]["late"] == row["engine"]["failed"] == 0 for row in found.metrics())


@pytest.mark.soak
def test_ray_gives_the_weights_of_the_in_process_engine_and_leaves_nothing_running(
    recipe, tmp_path
):
    wanted = in_process(recipe, tmp_path / "here")
    words = [
        "run",
        recipe,
        "--engine",
        "flower-sim",
        "--output",
        "there",
        "--no-page",
        "--set",
        "workers=2",
    ]
    with cut_off():  # it asks no network, where the kernel lets us see that
        done = subprocess.run(
            [sys.executable, "-m", "fjord.cli", *words],
            cwd=tmp_path,
            env={**os.environ, "MARK_OF_TEST": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert [
        line for line in done.stderr.splitlines() if "network_util" not in line
    ] == []  # Ray misses the network
    assert_same(RunFolder(tmp_path / "there"), wanted)
    if sys.platform == "linux":
        mark = str(tmp_path).encode()  # workers of Ray may be on their way out
        wait_until(
            lambda: not [p for p in Path("/proc").glob("[0-9]*/environ") if mark in read(p)], 30
        )


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_node_finds_the_plan_of_a_model_once_though_each_message_has_a_new_process(
    recipe, tmp_path, monkeypatch
):
    found = []
    real = fjord.experiments.experiment.elasticize
    monkeypatch.setattr(
        "fjord.experiments.experiment.elasticize", lambda *a, **k: found.append(1) or real(*a, **k)
    )
    settings = ("method=single", "widths=uniform-2", "tiers=uniform-2", "cohort_size=4")
    wanted = in_process(recipe, tmp_path / "here", settings)
    before = len(found)
    grid = LocalGrid(
        client_app(make_runtime.__wrapped__), [{}, {}]
    )  # which remembers nothing itself
    mine = serve_run(grid, RunSpec(recipe, settings), PATIENCE, tmp_path / "there")
    assert (
        len(found) == before * 2 + 2 * 2
    )  # the server once for each of the two models, and each node
    assert_same(mine, wanted)


KILLED = """
import os, signal, sys
from pathlib import Path
import fjord
from fjord.experiments.flower_app import make_runtime, serve_run
from fjord.engines.flower import codec
from fjord.engines.flower.client import client_app
from fjord.engines.flower.engine import ReplyPolicy
from fjord.engines.flower.run_spec import RunSpec
from local_grid import LocalGrid

def die(message, reply):
    if message.metadata.message_type == "train":
        head, _ = codec.unpack_content(message.content)
        if head["round"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return reply

settings = ("num_rounds=4", "scaffold=true", "server=fedadam")
grid = LocalGrid(client_app(make_runtime), [{}], die)
serve_run(grid, RunSpec(sys.argv[1], settings), ReplyPolicy(20.0), Path(sys.argv[2]))
"""


def test_a_server_killed_in_a_round_goes_on_to_the_same_weights(recipe, tmp_path):
    settings = ("num_rounds=4", "scaffold=true", "server=fedadam")
    paths = [str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, recipe, str(tmp_path / "there")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert len(RunFolder(tmp_path / "there").metrics()) == 2
    found = over_grid(recipe, tmp_path / "there", settings, resume=True)
    assert_same(found, in_process(recipe, tmp_path / "here", settings))
