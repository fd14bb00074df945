"""Clients that run out of memory train what a lower ceiling gives, or are dropped by name."""

import re
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from fed_oracles import Setting, assert_identical, assignments, snapshot
from shortages import few_objects  # noqa: F401

from fjord.core.memory import ClientOutOfMemory
from fjord.core.width import Width
from fjord.devices.tiers import ListedDevices, VaryingDevices
from fjord.engines.in_process import InProcessEngine
from fjord.federated.records import RoundRecord
from fjord.federated.rounds import Federation
from fjord.federated.server_optimizers import FedAdam
from fjord.training.assignment import Assignment, ClientUpdate
from fjord.training.local import ClientTrainer

SHORTAGE = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. "
    "DefaultCPUAllocator: can't allocate memory: you tried ..."
)
CEILINGS = ("1", "1", "1", "3/5", "1/5", "1")
SIZES = (8, 9, 7, 8, 6, 11)
Rooms = dict[tuple[int, int], str]
"""The widest submodel that fits the memory of (client, round)."""


class Scarce(ClientTrainer):
    """Trains as usual; what does not fit runs out of memory in its second step."""

    limits: Rooms

    def _train(self, task: Assignment, *rest: Any) -> ClientUpdate:
        limit = self.limits.get((task.client_id, task.round_index))
        if limit is None or self.carries(task, Fraction(limit)):
            return super()._train(task, *rest)
        short = replace(self.training, max_steps=1)
        self.training, usual = short, self.training
        try:
            super()._train(task, *rest)  # it gets somewhere first
        finally:
            self.training = usual
        raise RuntimeError(SHORTAGE)

    def carries(self, task: Assignment, limit: Fraction) -> bool:
        return all(len(task.units[f.name]) <= f.unit_count(limit) for f in self.model.plan.families)


def scarce(federation: Federation, limits: Rooms) -> ClientTrainer:
    trainer = federation.trainer()
    found = Scarce(trainer.model, trainer.data, trainer.training, trainer.seed, trainer.fallbacks)
    found.limits = limits
    return found


def short_of_memory(
    setting: Setting, limits: Rooms, workers: int = 1
) -> tuple[Federation, list[RoundRecord]]:
    federation = setting.make()
    with InProcessEngine(federation, workers=workers, trainer=scarce(federation, limits)) as engine:
        return federation, list(federation.rounds(engine))


def known_before(setting: Setting, limits: Rooms) -> tuple[Federation, list[RoundRecord]]:
    """The oracle: the same clients have that ceiling from the start of the round."""

    def lowered(client: int, t: int, usual: Width) -> Width:
        return min(usual, Fraction(limits.get((client, t), "1")))

    devices = VaryingDevices(ListedDevices([Fraction(c) for c in setting.ceilings]), lowered)
    federation = replace(setting, devices=devices).make()
    with InProcessEngine(federation) as engine:
        return federation, list(federation.rounds(engine))


def facts(record: RoundRecord) -> dict[str, Any]:
    """What has to be the same in both: all but what was sent and why less was trained."""
    tiers = {
        str(w): {**asdict(t), "bytes_down": 0} for w, t in sorted(record.tiers.items()) if t.clients
    }
    return {
        "loss": record.loss,
        "examples": record.examples,
        "shells": record.shells,
        "tiers": tiers,
    }


LIMITS: Rooms = {
    (0, 0): "3/5",
    (2, 0): "1/5",
    (1, 1): "2/5",
    (3, 1): "2/5",
    (2, 2): "3/5",
    (5, 2): "3/5",
}
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
    assert {t: sorted(r.reduced) for t, r in enumerate(records)} == {
        0: [0, 2],
        1: [1, 3],
        2: [2, 5],
        3: [],
    }
    if setting.scaffold:
        mine, theirs = found.scaffold, wanted.scaffold
        assert mine is not None
        assert theirs is not None
        for name in ("total", "holders", "control"):
            assert_identical(getattr(mine, name), getattr(theirs, name))


def test_the_record_says_from_what_to_what_and_why() -> None:
    setting = Setting(ceilings=CEILINGS, sizes=SIZES, rounds=2)
    _, records = short_of_memory(setting, LIMITS)
    assert records[0].reduced == {
        0: "from 1 to 3/5: out of memory",
        2: "from 1 to 1/5: out of memory",
    }
    assert records[1].reduced == {
        1: "from 1 to 2/5: out of memory",
        3: "from 3/5 to 2/5: out of memory",
    }
    _, (other,) = short_of_memory(
        replace(setting, rounds=1, method="efd", target=Width(4, 5)), LIMITS
    )
    assert other.reduced[0] == "from 4/5 to 3/5: out of memory"


def test_workers_do_not_matter() -> None:
    setting = Setting(ceilings=CEILINGS, sizes=SIZES, rounds=3, scaffold=True)
    found, records = short_of_memory(setting, LIMITS, workers=2)
    wanted, expected = short_of_memory(setting, LIMITS)
    assert_identical(snapshot(found.model), snapshot(wanted.model))
    assert [(facts(r), r.reduced) for r in records] == [(facts(r), r.reduced) for r in expected]


# ------------------------------------------------------------------------- what does not fit at all


ALL_OR_NOTHING = {
    name: Setting(method=name)
    for name in ("fedavg", "single", "drop-low-tier", "exclusive-small", "fd")
}
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
    assert not torch.equal(
        snapshot(federation.model)["0.weight"], snapshot(setting.make().model)["0.weight"]
    )


@pytest.mark.parametrize("name", ALL_OR_NOTHING)
def test_methods_that_have_nothing_smaller_to_give_drop_the_client_by_name(name: str) -> None:
    setting = replace(ALL_OR_NOTHING[name], ceilings=CEILINGS, sizes=SIZES)
    federation, (record,) = short_of_memory(setting, {(0, 0): "1/100"})
    assert record.dropped == {
        0: "out of memory, and no smaller part of what it was sent can be trained"
    }
    task = next(task for task in assignments(federation, 0) if task.client_id == 0)
    assert list(federation.allocator.all_smaller(task)) == []


def test_fjord_efd_falls_back_to_those_of_its_random_units_that_lie_below() -> None:
    setting = Setting(method="fjord-efd", ceilings=CEILINGS, sizes=SIZES)
    federation = setting.make()
    task = next(task for task in assignments(federation, 0) if task.client_id == 3)
    assert task.space.largest == Width(4, 5)
    parts = {part.ceiling: part for part in federation.allocator.all_smaller(task)}
    assert list(parts) == [Width(3, 5), Width(2, 5), Width(1, 5)]
    for ceiling, part in parts.items():
        assert part.space == federation.space.up_to(ceiling)
        for family in federation.model.plan.families:
            below = [u for u in task.units[family.name].tolist() if u < family.unit_count(ceiling)]
            assert part.units[family.name].tolist() == below
    _, (record,) = short_of_memory(setting, {(3, 0): "2/5"})
    assert re.fullmatch("from 4/5 to [123]/5: out of memory", record.reduced[3])
    assert not record.dropped


def test_an_error_that_is_none_of_memory_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ClientTrainer, task: Assignment, *rest: Any) -> ClientUpdate:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(ClientTrainer, "_train", fail)
    federation = Setting().make()
    with (
        pytest.raises(RuntimeError, match="mat1") as raised,
        InProcessEngine(federation) as e,
    ):
        list(federation.rounds(e))
    assert raised.value.__notes__ == ["client 0, round 0"]


def test_a_trainer_without_parts_says_that_it_has_none() -> None:
    federation = Setting().make()
    trainer = Scarce(federation.model, federation.data, federation.training, federation.seed)
    trainer.limits = {(0, 0): "1/5"}
    with pytest.raises(ClientOutOfMemory, match="no smaller part"):
        trainer(next(iter(assignments(federation, 0))))
