"""Transient load: ceilings that drop during a run, and clients that run out of memory and train less."""

import errno
import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fed_oracles import Setting, assert_identical, snapshot
from fjord.check import answered, fault_of
from fjord.devices.clock import Clock
from fjord.devices.load import Limits, Reading, read
from fjord.devices.tiers import Listed, Varying
from fjord.devices.trace import read_drops, traced
from fjord.engines.inprocess import InProcess
from fjord.federation import Federation, RoundRecord
from fjord.local import Reduced, Task, Trainer, Update
from fjord.recipes.find import apply_settings, find_recipe
from fjord.runner import run
from fjord.runs import RunFolder
from fjord.shortage import OutOfMemory, is_shortage
from fjord.strategies.server import FedAdam
from fjord.width import Width

SHORTAGE = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ..."
CEILINGS = ("1", "1", "1", "3/5", "1/5", "1")
SIZES = (8, 9, 7, 8, 6, 11)
Rooms = dict[tuple[int, int], str]
"""The widest submodel that fits the memory of (client, round)."""


@pytest.fixture(autouse=True, scope="module")
def _few_objects() -> Iterator[None]:
    """Keep what is there already out of collections, of which every shortage costs one."""
    Setting(kind="batchnorm").make()  # which loads most of torch
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Scarce(Trainer):
    """Trains as usual; what does not fit runs out of memory in its second step."""

    limits: Rooms

    def _train(self, task: Task, *rest: Any) -> Update:
        limit = self.limits.get((task.client_id, task.round_index))
        if limit is None or self.carries(task, Fraction(limit)):
            return super()._train(task, *rest)
        short = replace(self.how, max_steps=1)
        self.how, usual = short, self.how
        try:
            super()._train(task, *rest)  # it gets somewhere first
        finally:
            self.how = usual
        raise RuntimeError(SHORTAGE)

    def carries(self, task: Task, limit: Fraction) -> bool:
        return all(len(task.held[f.name]) <= f.count(limit) for f in self.model.plan.families)


def scarce(federation: Federation, limits: Rooms) -> Trainer:
    trainer = federation.trainer()
    found = Scarce(trainer.model, trainer.data, trainer.how, trainer.seed, trainer.parts)
    found.limits = limits
    return found


def short_of_memory(setting: Setting, limits: Rooms, workers: int = 1) -> tuple[Federation, list[RoundRecord]]:
    federation = setting.make()
    with InProcess(scarce(federation, limits), federation.data.test, workers) as engine:
        return federation, list(federation.rounds(engine))


def known_before(setting: Setting, limits: Rooms) -> tuple[Federation, list[RoundRecord]]:
    """The oracle: the same clients have that ceiling from the start of the round."""

    def lowered(client: int, t: int, usual: Width) -> Width:
        return min(usual, Fraction(limits.get((client, t), "1")))

    devices = Varying(Listed([Fraction(c) for c in setting.ceilings]), lowered)
    federation = replace(setting, devices=devices).make()
    with InProcess(federation.trainer(), federation.data.test) as engine:
        return federation, list(federation.rounds(engine))


def facts(record: RoundRecord) -> dict[str, Any]:
    """What has to be the same in both: all but what was sent and why less was trained."""
    tiers = {str(w): {**asdict(t), "bytes_down": 0} for w, t in sorted(record.tiers.items()) if t.clients}
    return {"loss": record.loss, "examples": record.examples, "shells": record.shells, "tiers": tiers}


LIMITS: Rooms = {(0, 0): "3/5", (2, 0): "1/5", (1, 1): "2/5", (3, 1): "2/5", (2, 2): "3/5", (5, 2): "3/5"}
METHODS_THAT_NARROW = {
    "fjord": Setting(),
    "fjord-kd": Setting(method="fjord-kd"),
    "fjord, batchnorm": Setting(kind="batchnorm"),
    "fjord-kd, statistics": Setting(kind="batchnorm", norms="statistics", method="fjord-kd"),
    "fjord, lstm, momentum": Setting(kind="lstm", momentum=0.9),
    "heterofl": Setting(method="heterofl"),
    "heterofl, shared norms": Setting(kind="batchnorm", norms="shared", method="heterofl"),
    "efd": Setting(method="efd"),
    "efd, batchnorm, 4/5": Setting(kind="batchnorm", method="efd", target=Width(4, 5)),
    "fedrolex": Setting(method="fedrolex"),
    "fedprox": Setting(prox=0.1, epochs=2),
    "nova": Setting(nova=True, momentum=0.9),
    "nova, kd": Setting(nova=True, kind="batchnorm", method="fjord-kd"),
    "scaffold": Setting(scaffold=True),
    "scaffold, fedrolex": Setting(scaffold=True, method="fedrolex"),
    "fedadam": Setting(step=FedAdam()),
}


@pytest.mark.parametrize("name", METHODS_THAT_NARROW)
def test_running_out_of_memory_gives_what_a_lower_ceiling_gives_bit_for_bit(name: str) -> None:
    setting = replace(METHODS_THAT_NARROW[name], ceilings=CEILINGS, sizes=SIZES, rounds=4)
    found, records = short_of_memory(setting, LIMITS)
    wanted, expected = known_before(setting, LIMITS)
    assert_identical(snapshot(found.model), snapshot(wanted.model))
    assert [facts(r) for r in records] == [facts(r) for r in expected]
    assert all(not r.dropped for r in records)
    assert {t: sorted(r.reduced) for t, r in enumerate(records)} == {0: [0, 2], 1: [1, 3], 2: [2, 5], 3: []}
    if setting.scaffold:
        mine, theirs = found.state.scaffold, wanted.state.scaffold
        assert mine is not None
        assert theirs is not None
        for name in ("total", "holders", "control"):
            assert_identical(getattr(mine, name), getattr(theirs, name))


def test_the_record_says_from_what_to_what_and_why() -> None:
    setting = Setting(ceilings=CEILINGS, sizes=SIZES, rounds=2)
    _, records = short_of_memory(setting, LIMITS)
    assert records[0].reduced == {0: "from 1 to 3/5: out of memory", 2: "from 1 to 1/5: out of memory"}
    assert records[1].reduced == {1: "from 1 to 2/5: out of memory", 3: "from 3/5 to 2/5: out of memory"}
    _, (other,) = short_of_memory(replace(setting, rounds=1, method="efd", target=Width(4, 5)), LIMITS)
    assert other.reduced[0] == "from 4/5 to 3/5: out of memory"


def test_workers_do_not_matter() -> None:
    setting = Setting(ceilings=CEILINGS, sizes=SIZES, rounds=3, scaffold=True)
    found, records = short_of_memory(setting, LIMITS, workers=2)
    wanted, expected = short_of_memory(setting, LIMITS)
    assert_identical(snapshot(found.model), snapshot(wanted.model))
    assert [(facts(r), r.reduced) for r in records] == [(facts(r), r.reduced) for r in expected]


# ------------------------------------------------------------------------------------- what does not fit at all


ALL_OR_NOTHING = {name: Setting(method=name) for name in ("fedavg", "single", "drop-low-tier", "exclusive-small", "fd")}
ALL_OR_NOTHING["heterofl with BatchNorm per width"] = Setting(method="heterofl", kind="batchnorm")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_without_room_for_the_smallest_width_is_dropped_by_name(workers: int) -> None:
    setting = Setting(ceilings=CEILINGS, sizes=SIZES)
    federation, (record,) = short_of_memory(setting, {(1, 0): "1/100", (3, 0): "1/100"}, workers)
    assert record.dropped == dict.fromkeys((1, 3), "out of memory, also at 1/5")
    assert not record.reduced
    assert record.tiers[Width(1)].clients == 3
    others = replace(setting, ceilings=("1", "1", "1/5", "1"), sizes=(8, 7, 6, 11))
    assert sum(t.clients for t in record.tiers.values()) == len(others.sizes)
    assert not torch.equal(snapshot(federation.model)["0.weight"], snapshot(setting.make().model)["0.weight"])


@pytest.mark.parametrize("name", ALL_OR_NOTHING)
def test_methods_that_have_nothing_smaller_to_give_drop_the_client_by_name(name: str) -> None:
    setting = replace(ALL_OR_NOTHING[name], ceilings=CEILINGS, sizes=SIZES)
    federation, (record,) = short_of_memory(setting, {(0, 0): "1/100"})
    assert record.dropped == {0: "out of memory, and no smaller part of what it was sent can be trained"}
    task = next(task for task in federation.tasks(0) if task.client_id == 0)
    assert list(federation.portions.below(task)) == []


def test_fjord_efd_falls_back_to_those_of_its_random_units_that_lie_below() -> None:
    setting = Setting(method="fjord-efd", ceilings=CEILINGS, sizes=SIZES)
    federation = setting.make()
    task = next(task for task in federation.tasks(0) if task.client_id == 3)
    assert task.space.largest == Width(4, 5)
    parts = dict(federation.portions.below(task))
    assert list(parts) == [Width(3, 5), Width(2, 5), Width(1, 5)]
    for ceiling, part in parts.items():
        assert part.space == federation.space.upto(ceiling)
        for family in federation.model.plan.families:
            below = [u for u in task.held[family.name].tolist() if u < family.count(ceiling)]
            assert part.held[family.name].tolist() == below
    _, (record,) = short_of_memory(setting, {(3, 0): "2/5"})
    assert re.fullmatch("from 4/5 to [123]/5: out of memory", record.reduced[3])
    assert not record.dropped


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), OSError(errno.ENOMEM, "fork")):
        assert is_shortage(error)
    for text in (SHORTAGE, "std::bad_alloc", "MPS backend out of memory", "DefaultCPUAllocator: not enough memory: x"):
        assert is_shortage(RuntimeError(text))
    for error in (RuntimeError("shapes"), ValueError("out of memory"), OSError(errno.ENOSPC, "full"), KeyError("x")):
        assert not is_shortage(error)


def test_an_error_that_is_none_of_memory_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Trainer, task: Task, *rest: Any) -> Update:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Trainer, "_train", fail)
    federation = Setting().make()
    with (
        pytest.raises(RuntimeError, match="mat1") as raised,
        InProcess(federation.trainer(), federation.data.test) as e,
    ):
        list(federation.rounds(e))
    assert raised.value.__notes__ == ["client 0, round 0"]


def test_a_trainer_without_parts_says_that_it_has_none() -> None:
    federation = Setting().make()
    trainer = Scarce(federation.model, federation.data, federation.training, federation.seed)
    trainer.limits = {(0, 0): "1/5"}
    with pytest.raises(OutOfMemory, match="no smaller part"):
        trainer(next(iter(federation.tasks(0))))


# ------------------------------------------------------------------------ the smaller task, and the server's door


def task_of(setting: Setting, ceiling: Width, t: int) -> tuple[Federation, Task]:
    """The task of client 0 in some round, had it this ceiling; others keep the variates of SCAFFOLD busy."""
    devices = Varying(Listed([Width(1), Width(3, 5)]), lambda client, r, usual: usual if client or r < t else ceiling)
    federation = replace(setting, devices=devices, sizes=(5, 4), rounds=t + 1).make()
    with InProcess(federation.trainer(), federation.data.test) as engine:
        rounds = federation.rounds(engine)
        for _ in range(t):
            next(rounds)
        found = next(task for task in federation.tasks(t) if task.client_id == 0)
    return federation, found


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["fjord", "fjord-kd", "heterofl", "efd", "fedrolex"]),
    st.sampled_from(["dense", "counting", "lstm"]),
    st.integers(2, 5),
    st.integers(1, 5),
    st.sampled_from([0, 3]),
    st.booleans(),
)
def test_a_smaller_task_is_the_one_that_ceiling_would_have_been_sent(
    method: str, kind: str, sent: int, fits: int, t: int, scaffold: bool
) -> None:
    setting = Setting(kind=kind, method=method, scaffold=scaffold)
    federation, task = task_of(setting, Width(sent, 5), t)
    found = federation.portions.smaller(task, Width(fits, 5))
    if fits >= sent:
        assert found is None
        return
    _, wanted = task_of(setting, Width(fits, 5), t)
    assert found is not None
    assert (found.client_id, found.round_index, found.lr, found.space) == (0, t, wanted.lr, wanted.space)
    for name in ("held", "tensors", "correction"):
        assert list(getattr(found, name)) == list(getattr(wanted, name))
        assert_identical(getattr(found, name), getattr(wanted, name))


def good(task: Task, reduced: Reduced | None) -> Update:
    counts = {task.space.largest: 2}
    tensors = {key: t.clone() for key, t in task.tensors.items()}
    return Update(task.client_id, tensors, 5, 0.5, counts, counts, 10, reduced)


FAULTS: dict[str, tuple[Reduced | Any, str]] = {
    "as much as was sent": (Reduced(Width(4, 5), "x"), "no smaller part"),
    "more than was sent": (Reduced(Width(1), "x"), "no smaller part"),
    "not in P": (Reduced(Width(1, 2), "x"), "no smaller part"),
    "tiny": (Reduced(Width(1, 10**9), "x"), "no smaller part"),
    "a float": (Reduced(0.4, "x"), "reduced is"),  # type: ignore[arg-type]
    "text": (Reduced("2/5", "x"), "reduced is"),  # type: ignore[arg-type]
    "no record": ("2/5", "reduced is"),
    "true": (True, "reduced is"),
    "a reason of two lines": (Reduced(Width(2, 5), "a\nb"), "its reason"),
    "an endless reason": (Reduced(Width(2, 5), "a" * 10**6), "its reason"),
    "a reason that is none": (Reduced(Width(2, 5), None), "its reason"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("slice_of", ["4/5", "2/5"])
def test_a_reply_that_says_it_is_smaller_must_be_a_smaller_part_of_what_was_sent(name: str, slice_of: str) -> None:
    federation, task = task_of(Setting(), Width(4, 5), 0)
    reduced, words = FAULTS[name]
    part = task if slice_of == "4/5" else federation.portions.smaller(task, Width(2, 5))
    assert part is not None
    found = answered(task, good(part, reduced), federation.portions)
    assert isinstance(found, str)
    assert words in found


def test_the_slice_must_be_that_of_the_ceiling_it_names() -> None:
    federation, task = task_of(Setting(kind="batchnorm"), Width(4, 5), 0)
    parts = {w: federation.portions.smaller(task, w) for w in (Width(2, 5), Width(3, 5))}
    small, middle = parts[Width(2, 5)], parts[Width(3, 5)]
    assert small is not None
    assert middle is not None
    fine = good(small, Reduced(Width(2, 5), "out of memory"))
    accepted = answered(task, fine, federation.portions)
    assert isinstance(accepted, Task)
    assert accepted.space == small.space
    assert_identical(accepted.tensors, small.tensors)
    for wrong in (
        good(small, None),  # a smaller slice without a word
        good(task, Reduced(Width(2, 5), "x")),
        good(middle, Reduced(Width(2, 5), "x")),
        replace(fine, steps={Width(4, 5): 1}),  # widths that it no longer had
        replace(fine, client_id=1),
        replace(fine, tensors={key: t * torch.nan for key, t in fine.tensors.items()}),
    ):
        assert isinstance(answered(task, wrong, federation.portions), str)
    assert fault_of(task, fine) is not None


# --------------------------------------------------------------------------------------------- traces of load


def test_a_trace_lowers_ceilings_in_its_rounds_only(tmp_path: Path) -> None:
    rows = "client, round, from-round, to-round, ceiling\n0,2,,,2/5\n1,,1,3,0.6\n1,,3,,1/5\n*,5,,,80%\n2,0,,,1\n"
    as_json = [
        {"client": 0, "round": 2, "ceiling": "2/5"},
        {"client": 1, "from-round": 1, "to-round": 3, "ceiling": 0.6},
        {"client": "1", "from-round": 3, "to-round": None, "ceiling": "1/5"},
        {"client": "*", "round": 5, "ceiling": "80%"},
        {"client": 2, "round": 0, "ceiling": 1},
    ]
    (tmp_path / "load.csv").write_text(rows)
    (tmp_path / "load.json").write_text(json.dumps(as_json, indent=1))
    usual = Listed([Width(1), Width(4, 5), Width(2, 5)])
    for name in ("load.csv", "load.json"):
        devices = traced(usual, tmp_path / name, 3, Width(1, 5))
        found = [[str(devices.ceiling(client, t)) for t in range(7)] for client in range(3)]
        assert found[0] == ["1", "1", "2/5", "1", "1", "4/5", "1"]
        assert found[1] == ["4/5", "3/5", "3/5", "1/5", "1/5", "1/5", "1/5"]
        assert found[2] == ["2/5"] * 7
        assert devices.tiers == usual.tiers


HEAD = "client,round,ceiling\n"
BAD_TRACES = {
    "a.csv": [
        (HEAD + "0,1,1/5\n7,1,1/5\n", r"a\.csv, line 3: there is no client 7; they are 0 to 2"),
        (HEAD + "0,1,7/5\n", r"line 2: width '7/5' is not"),
        (HEAD + "0,1,1/10\n", r"line 2: ceiling 1/10 is below the smallest width 1/5"),
        (HEAD + "0,-1,1/5\n", r"line 2: round '-1' is not a whole number"),
        (HEAD + "0,1.5,1/5\n", r"line 2: round '1.5'"),
        (HEAD + "x,1,1/5\n", r"line 2: client 'x'"),
        (HEAD + "0,1\n", r"line 2: ceiling is missing; needed are client, ceiling, and round"),
        (HEAD + "0,,1/5\n", r"line 2: from-round is missing"),
        ("client,ceiling\n0,1/5\n", r"line 2: from-round is missing"),
        ("client,from-round,to-round,ceiling\n0,3,2,1/5\n", r"line 2: to-round 2 is before from-round 3"),
        ("client,round,from-round,ceiling\n0,3,2,1/5\n", r"line 2: round and from-round are both given"),
        ("client,from-round,to_round,ceiling\n0,3,5,1/5\n", r"line 2: 'to_round' is not one of client, ceiling, round"),
        ("", "holds no rows"),
        (HEAD, "holds no rows"),
    ],
    "a.json": [
        (
            '[\n{"client": 0, "round": 1, "ceiling": "1"},\n{"client": 3, "round": 1, "ceiling": "1"}\n]',
            r"line 3: there",
        ),
        ('[{"client": 0, "round": 1.0, "ceiling": "1"}]', r"line 1: round 1.0"),
        ('[{"client": true, "round": 1, "ceiling": "1"}]', r"line 1: client True"),
        ('[{"client": 0, "round": 1, "ceiling": [1]}]', r"line 1: width"),
        ("[\n3]", r"line 2: 3 is not an object"),
        ('{"0": "1/5"}', "is not a list of objects"),
        ("[\n{", r"line 2: is not JSON"),
        ("[]", "holds no rows"),
    ],
}


@pytest.mark.parametrize(("name", "text", "words"), [(n, *case) for n, cases in BAD_TRACES.items() for case in cases])
def test_a_bad_trace_is_one_error_that_names_file_and_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words) as raised:
        read_drops(tmp_path / name, 3, Width(1, 5))
    assert str(tmp_path / name) in str(raised.value)


def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x81")
    for name in ("gone.csv", "gone.json", "bytes.csv"):
        with pytest.raises(ValueError, match=rf"load .*{name}: cannot be read"):
            read_drops(tmp_path / name, 3, Width(1, 5))


# ----------------------------------------------------------------------------- every engine, and real shortages

RECIPE = """
import resource
from dataclasses import replace
import torch
from torch import nn
import fjord

CLIENT = 0
PLAIN = fjord.find_method("fjord-kd")


def make(client):
    global CLIENT
    CLIENT = client
    g = torch.Generator().manual_seed(client)
    x = torch.randn(6 + client, 40, 12, generator=g)
    return x, x.mean((1, 2)).gt(0).long()


def data(seed):
    x, y = make(6)
    return fjord.Generated(6, make, fjord.TestSet(x, y, torch.arange(len(x)) % 6), remembered=0)


def scarce(logits_at, target, width, widest):
    if CLIENT in (1, 4) and widest > fjord.parse_width("2/5"):
        PLAIN.objective(logits_at, target, width, widest).backward()
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes")
    return PLAIN.objective(logits_at, target, width, widest)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(12, 600), nn.BatchNorm1d(40), nn.Linear(600, 2)

    def forward(self, x):
        return self.head(torch.tanh(torch.relu(self.norm(self.first(x))))).mean(1)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(12, 10), nn.BatchNorm1d(10), nn.Linear(10, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x).mean(1))))


def calm():
    return fjord.Experiment(
        name="tiny", model=Small, data=data, method=PLAIN, tiers="1/5:1/3,1:2/3", num_rounds=2, cohort_size=6,
        batch_size=4, eval_every=1, workers=1,
    )


def recipe():
    return replace(calm(), method=replace(PLAIN, objective=scarce))


def wide():
    return replace(calm(), model=Wide, batch_size=100, data=lambda seed: generated(many))


def narrow_machine():
    return replace(wide(), data=lambda seed: generated(limited))


def generated(make_many):
    return fjord.Generated(6, make_many, data(0).test, remembered=0)


def many(client):
    x, y = make(client)
    return x.repeat(10, 1, 1), y.repeat(10)


def limited(client):
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        Wide()(torch.randn(4, 40, 12)).sum().backward()  # what torch loads and sets up when it is first used
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 45 * 2**20, resource.RLIM_INFINITY))
    return many(client)
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("transient") / "tiny.py"
    path.write_text(RECIPE)
    return str(path)


def in_process(recipe: str, folder: Path, *given: str) -> RunFolder:
    return run(apply_settings(find_recipe(recipe)(), given), folder, recipe={"name": recipe, "set": list(given)})


def trace_of(found: RunFolder) -> str:
    """Write what happened in a run as a trace, which tells the server beforehand."""
    rows = ["client,round,ceiling"]
    for row in found.metrics():
        for client, why in row["reduced"].items():
            rows.append(f"{client},{row['round']},{re.fullmatch('from .* to (.*): .*', why)[1]}")
    path = found.path / "trace.csv"
    path.write_text("\n".join(rows))
    return str(path)


def assert_same(mine: RunFolder, wanted: RunFolder) -> None:
    here, there = (load_file(folder.path / "model.safetensors") for folder in (mine, wanted))
    assert_identical(here, there)
    for one, other in zip(mine.metrics(), wanted.metrics(), strict=True):
        for key in ("loss", "examples", "macs", "shells", "scores"):
            assert one[key] == other[key]


REDUCED = {"1": "from 1 to 2/5: out of memory", "4": "from 1 to 2/5: out of memory"}


@pytest.mark.parametrize("strategy", ["", "scaffold=true", "nova=true"])
def test_all_engines_agree_with_a_run_whose_trace_says_it_beforehand(
    recipe: str, tmp_path: Path, strategy: str
) -> None:
    pytest.importorskip("flwr")
    from fjord.app import client_of, serve
    from fjord.engines.flower.engine import Order, Patience
    from fjord.engines.flower.grid import LocalGrid

    given = [strategy] if strategy else []
    found = [in_process(recipe, tmp_path / f"{workers}", f"workers={workers}", *given) for workers in (1, 2)]
    grid = LocalGrid(client_of(), [{}, {}])
    found.append(serve(grid, Order(recipe, tuple(given)), Patience(60.0), tmp_path / "grid"))
    wanted = in_process(f"{recipe}:calm", tmp_path / "calm", f"load={trace_of(found[0])}", *given)
    for one in found:
        assert_same(one, wanted)
        assert [row["reduced"] for row in one.metrics()] == [REDUCED, REDUCED]
        assert not any(row["dropped"] for row in one.metrics())
    up = {down: size for kind, down, size in grid.sizes if kind == "train"}
    assert min(up.values()) < 0.8 * max(up.values())
    assert all("reduced" not in row for row in wanted.metrics())


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_a_real_lack_of_memory_makes_clients_train_less_with_the_same_result(recipe: str, tmp_path: Path) -> None:
    words = ["run", f"{recipe}:narrow_machine", "--output", str(tmp_path / "narrow"), "--no-page"]
    done = subprocess.run([sys.executable, "-m", "fjord.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = RunFolder(tmp_path / "narrow")
    assert all(row["reduced"] and not row["dropped"] for row in found.metrics())
    assert "updates hold less than was sent" in done.stdout
    assert_same(found, in_process(f"{recipe}:wide", tmp_path / "wide", f"load={trace_of(found)}"))


# ------------------------------------------------------------------------------------- a device's own reading


def device_files(root: Path, **texts: str) -> Path:
    """Lay out what a kernel tells, under another root."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("memory_", "memory.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    2000000 kB\n"


def test_load_memory_and_battery_are_read_from_the_kernel(tmp_path: Path) -> None:
    battery = dict(zip(("type", "status", "capacity"), ("Battery\n", "Discharging\n", "17\n"), strict=True))
    root = device_files(
        tmp_path,
        proc__loadavg="3.00 2.00 1.00 2/345 6789\n",
        proc__meminfo=MEMINFO,
        **{f"sys__class__power_supply__BAT0__{k}": v for k, v in battery.items()},
        **{
            f"sys__class__power_supply__mouse__{k}": v
            for k, v in (battery | {"scope": "Device", "capacity": "3"}).items()
        },
        sys__class__power_supply__AC__type="Mains\n",
    )
    assert read(root, cores=4) == Reading(0.75, 2_048_000_000, 17)
    (root / "sys/class/power_supply/BAT0/status").write_text("Charging\n")
    assert read(root, cores=4).battery is None
    assert read(tmp_path / "nothing", cores=1) == Reading()


def test_a_container_has_only_what_its_control_groups_leave(tmp_path: Path) -> None:
    root = device_files(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/fleet/node\n",
        sys__fs__cgroup__fleet__node__memory_max="max\n",
        sys__fs__cgroup__fleet__node__memory_current="100\n",
        sys__fs__cgroup__fleet__memory_max="900\n",
        sys__fs__cgroup__fleet__memory_current="700\n",
        sys__fs__cgroup__fleet__memory_stat="anon 300\ninactive_file 50\n",
    )
    assert read(root).memory == 250


def test_limits_say_how_many_tiers_down_and_why() -> None:
    limits = Limits.of({"max-load": 1.5, "min-battery": 20, "spare-mb": 200, "ceiling": "1"})
    assert limits.tiers_down(Reading(1.5, 10**9, 20)) == (0, "")
    assert limits.tiers_down(Reading(1.6, 10**9, None)) == (1, "load 1.60 a core")
    assert limits.tiers_down(Reading(3.2, 10**9, 19)) == (3, "load 3.20 a core, battery at 19%")
    assert limits.room(Reading(0.0, 10**9)) == 8 * 10**8
    assert not Limits.of({"ceiling": "1"})
    with pytest.raises(ValueError, match=r"max-load: this device has no /proc/loadavg"):
        limits.tiers_down(Reading())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max-load": 0}, "max-load=0 must be above 0"),
        ({"max-load": "1.5"}, "max-load='1.5' must be a number of at least 0, without quotes"),
        ({"min-battery": 120}, "min-battery=120 must be a number of percent"),
        ({"spare-mb": -1}, "spare-mb=-1 must be a number"),
        ({"spare-mb": True}, "spare-mb=True must be a number"),
    ],
)
def test_limits_that_make_no_sense_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Limits.of(config)


def over_nodes(recipe: str, folder: Path, node: dict[str, Any], given: tuple[str, ...] = ()) -> RunFolder:
    from fjord.app import client_of, serve
    from fjord.engines.flower.engine import Order, Patience
    from fjord.engines.flower.grid import LocalGrid

    return serve(LocalGrid(client_of(), [node]), Order(f"{recipe}:calm", given), Patience(60.0), folder)


def test_a_busy_node_trains_less_than_it_was_sent_and_returns_only_that(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pytest.importorskip("fjord.engines.flower.client")
    monkeypatch.setattr(app, "read", lambda: Reading(2.2, 5 * 10**9, 9))
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
    monkeypatch.setattr(app, "read", lambda: Reading(0.0, 950 * 10**6))
    costs = [{"width": f"{k}/5" if k < 5 else "1", "memory_bytes": k * 200 * 10**6} for k in range(1, 6)]
    (tmp_path / "profile.json").write_text(json.dumps({"costs": costs}))
    node = {"spare-mb": 300, "profile": str(tmp_path / "profile.json")}
    found = over_nodes(recipe, tmp_path / "measured", node)
    assert set(found.metrics()[0]["reduced"].values()) == {"from 1 to 3/5: 1000 MB needed and 650 to spare"}
    estimated = over_nodes(recipe, tmp_path / "estimated", {"spare-mb": 949.9999})
    assert set(estimated.metrics()[0]["reduced"].values()) == {"from 1 to 1/5: 0 MB needed and 0 to spare"}
    (tmp_path / "profile.json").write_text(json.dumps({"costs": costs[:2]}))
    wrong = over_nodes(recipe, tmp_path / "wrong", node, ("num_rounds=1",))
    assert all("has no width 3/5, 4/5, 1" in why for why in wrong.metrics()[0]["dropped"].values())


def test_a_node_with_limits_that_make_no_sense_is_not_used_and_named(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    found = over_nodes(recipe, tmp_path / "run", {"max-load": -1}, ("num_rounds=1",))
    assert all("max-load=-1" in why for why in found.metrics()[0]["dropped"].values())


# --------------------------------------------------------------------------------------------------- settings


def test_load_may_be_a_function_or_a_file_and_is_checked_at_the_door(recipe: str, tmp_path: Path) -> None:
    calm = find_recipe(f"{recipe}:calm")()
    trace = tmp_path / "load.csv"
    trace.write_text("client,from-round,ceiling\n*,1,1/5\n")
    lowered = apply_settings(calm, [f"load={trace}"])
    assert {str(lowered.find_devices(6).ceiling(client, 1)) for client in range(6)} == {"1/5"}
    assert lowered.config()["load_digest"]
    assert "load_digest" not in calm.config()
    assert apply_settings(lowered, ["load=none"]).load is None
    by_function = replace(calm, load=lambda client, t, usual: "1/5" if t else usual)
    assert {str(by_function.find_devices(6).ceiling(client, 1)) for client in range(6)} == {"1/5"}
    for bad in ("heavy", "load.txt"):
        with pytest.raises(ValueError, match=r"load=.* must be a \.csv or \.json file"):
            apply_settings(calm, [f"load={bad}"])
    trace.write_text("client,round,ceiling\n6,1,1/5\n")
    with pytest.raises(ValueError, match=r"load\.csv, line 2: there is no client 6"):
        run(lowered, tmp_path / "never")
    trace.write_text("client,round,ceiling\n0,9,1/5\n")
    row = {"ceiling": "2/5", "macs_per_second": "1M", "down": "1MB/s", "up": "1MB/s"}
    with pytest.raises(ValueError, match=r"clock: no tier for ceiling 1/5; the lowest is 2/5"):
        run(replace(lowered, tiers="2/5:1/2,1:1/2", clock=Clock.of([row])), tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_page_and_the_command_line_tell_of_reduced_updates(recipe: str, tmp_path: Path) -> None:
    from fjord.cli.display import warnings_of
    from fjord.report import page

    found = in_process(recipe, tmp_path / "run")
    assert warnings_of(found) == [
        "Note: 4 updates hold less than was sent, most often (4 times) from 1 to 2/5: out of memory."
    ]
    text = page.write([found], tmp_path / "page.html").read_text()
    assert "4 updates of clients that trained less than they were sent." in text
    assert "4 updates: from 1 to 2/5: out of memory" in text


def test_the_page_on_load_says_what_is_so(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "load.md").read_text()
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.S))
    for kind in ("csv", "json"):
        (tmp_path / f"load.{kind}").write_text(blocks[kind])
    assert "fjord run demo --set load=load.csv" in blocks["sh"]
    devices = apply_settings(find_recipe("demo")(), [f"load={tmp_path / 'load.csv'}"]).find_devices(200)
    lowered = [t for t in range(80) if devices.ceiling(0, t) < devices.usual.ceiling(0, t)]
    assert set(lowered) <= {*range(10, 20), *range(30, 80)}
    assert max(devices.ceiling(client, 55) for client in range(200)) == Width(3, 5)
    assert read_drops(tmp_path / "load.json", 200, Width(1, 5))[0][0].last == 19
    names: dict[str, Any] = {}
    exec(blocks["python"], names)
    assert {str(names["recipe"]().find_devices(200).ceiling(client, 9)) for client in range(200)} == {"1/5"}
