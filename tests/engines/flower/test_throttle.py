"""Transient load in whole runs: every engine, a real lack of memory, busy nodes, warnings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shortages import assert_same, few_objects, in_process, tiny_recipe, trace_of  # noqa: F401

from fjord.devices.host import HostReading
from fjord.experiments.runs import RunFolder

REDUCED = {"1": "from 1 to 2/5: out of memory", "4": "from 1 to 2/5: out of memory"}


@pytest.mark.parametrize("strategy", ["", "scaffold=true", "nova=true"])
def test_all_engines_agree_with_a_run_whose_trace_says_it_beforehand(
    recipe: str, tmp_path: Path, strategy: str
) -> None:
    pytest.importorskip("flwr")
    from local_grid import LocalGrid

    from fjord.engines.flower.engine import ReplyPolicy
    from fjord.engines.flower.run_spec import RunSpec
    from fjord.experiments.flower_app import client_of, serve_run

    given = [strategy] if strategy else []
    found = [
        in_process(recipe, tmp_path / f"{workers}", f"workers={workers}", *given)
        for workers in (1, 2)
    ]
    grid = LocalGrid(client_of(), [{}, {}])
    found.append(
        serve_run(grid, RunSpec(recipe, tuple(given)), ReplyPolicy(60.0), tmp_path / "grid")
    )
    wanted = in_process(f"{recipe}:calm", tmp_path / "calm", f"load={trace_of(found[0])}", *given)
    for one in found:
        assert_same(one, wanted)
        assert [row["reduced"] for row in one.metrics()] == [REDUCED, REDUCED]
        assert not any(row["dropped"] for row in one.metrics())
    up = {down: size for kind, down, size in grid.sizes if kind == "train"}
    assert min(up.values()) < 0.8 * max(up.values())
    assert all("reduced" not in row for row in wanted.metrics())


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_a_real_lack_of_memory_makes_clients_train_less_with_the_same_result(
    recipe: str, tmp_path: Path
) -> None:
    words = ["run", f"{recipe}:narrow_machine", "--output", str(tmp_path / "narrow"), "--no-page"]
    done = subprocess.run(
        [sys.executable, "-m", "fjord.cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = RunFolder(tmp_path / "narrow")
    assert all(row["reduced"] and not row["dropped"] for row in found.metrics())
    assert "updates hold less than was sent" in done.stdout
    assert_same(found, in_process(f"{recipe}:wide", tmp_path / "wide", f"load={trace_of(found)}"))


def over_nodes(
    recipe: str, folder: Path, node: dict[str, Any], given: tuple[str, ...] = ()
) -> RunFolder:
    from local_grid import LocalGrid

    from fjord.engines.flower.engine import ReplyPolicy
    from fjord.engines.flower.run_spec import RunSpec
    from fjord.experiments.flower_app import client_of, serve_run

    return serve_run(
        LocalGrid(client_of(), [node]), RunSpec(f"{recipe}:calm", given), ReplyPolicy(60.0), folder
    )


def test_a_busy_node_trains_less_than_it_was_sent_and_returns_only_that(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pytest.importorskip("fjord.engines.flower.client")
    monkeypatch.setattr(app, "read_host", lambda: HostReading(2.2, 5 * 10**9, 9))
    found = over_nodes(recipe, tmp_path / "busy", {"max-load": 1.0, "min-battery": 10})
    reduced = found.metrics()[0]["reduced"]
    assert set(reduced.values()) == {"from 1 to 2/5: load 2.20 a core, battery at 9%"}
    assert len(reduced) == 4  # of 6: the others can do no less
    assert_same(found, in_process(f"{recipe}:calm", tmp_path / "calm", f"load={trace_of(found)}"))
    whole = over_nodes(recipe, tmp_path / "fedavg", {"max-load": 1.0}, ("method=fedavg",))
    assert not any(row["dropped"] or "reduced" in row for row in whole.metrics())


def test_a_node_trains_the_widest_whose_memory_fits(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pytest.importorskip("fjord.engines.flower.client")
    monkeypatch.setattr(app, "read_host", lambda: HostReading(0.0, 950 * 10**6))
    costs = [
        {"width": f"{k}/5" if k < 5 else "1", "memory_bytes": k * 200 * 10**6} for k in range(1, 6)
    ]
    (tmp_path / "profile.json").write_text(json.dumps({"costs": costs}))
    node = {"spare-mb": 300, "profile": str(tmp_path / "profile.json")}
    found = over_nodes(recipe, tmp_path / "measured", node)
    assert set(found.metrics()[0]["reduced"].values()) == {
        "from 1 to 3/5: 1000 MB needed and 650 to spare"
    }
    estimated = over_nodes(recipe, tmp_path / "estimated", {"spare-mb": 949.9999})
    assert set(estimated.metrics()[0]["reduced"].values()) == {
        "from 1 to 1/5: 0 MB needed and 0 to spare"
    }
    (tmp_path / "profile.json").write_text(json.dumps({"costs": costs[:2]}))
    wrong = over_nodes(recipe, tmp_path / "wrong", node, ("num_rounds=1",))
    assert all("has no width 3/5, 4/5, 1" in why for why in wrong.metrics()[0]["dropped"].values())


def test_a_node_with_limits_that_make_no_sense_is_not_used_and_named(
    recipe: str, tmp_path: Path
) -> None:
    pytest.importorskip("flwr")
    found = over_nodes(recipe, tmp_path / "run", {"max-load": -1}, ("num_rounds=1",))
    assert all("max-load=-1" in why for why in found.metrics()[0]["dropped"].values())


def test_the_page_and_the_command_line_tell_of_reduced_updates(recipe: str, tmp_path: Path) -> None:
    from fjord.cli.display import run_warnings
    from fjord.report import page

    found = in_process(recipe, tmp_path / "run")
    often = "most often (4 times) from 1 to 2/5: out of memory"
    assert run_warnings(found) == [f"Note: 4 updates hold less than was sent, {often}."]
    text = page.write_page([found], tmp_path / "page.html").read_text()
    assert "4 updates of clients that trained less than they were sent." in text
    assert "4 updates: from 1 to 2/5: out of memory" in text
