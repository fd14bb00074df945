"""Transient load: ceilings that drop during a run, and clients that run out of memory and train less."""

from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest

from fed_oracles import Setting, assert_identical, snapshot
from fjord.devices.tiers import Listed, Varying
from fjord.engines.inprocess import InProcess
from fjord.federation import Federation, RoundRecord
from fjord.local import Task, Trainer, Update
from fjord.strategies.server import FedAdam
from fjord.width import Width

SHORTAGE = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ..."
CEILINGS = ("1", "1", "1", "3/5", "1/5", "1")
SIZES = (8, 9, 7, 8, 6, 11)
Limits = dict[tuple[int, int], str]
"""The widest submodel that fits the memory of (client, round)."""


class Scarce(Trainer):
    """Trains as usual; what does not fit runs out of memory in its second step."""

    limits: Limits

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


def scarce(federation: Federation, limits: Limits) -> Trainer:
    trainer = federation.trainer()
    found = Scarce(trainer.model, trainer.data, trainer.how, trainer.seed, trainer.parts)
    found.limits = limits
    return found


def short_of_memory(setting: Setting, limits: Limits, workers: int = 1) -> tuple[Federation, list[RoundRecord]]:
    federation = setting.make()
    with InProcess(scarce(federation, limits), federation.data.test, workers) as engine:
        return federation, list(federation.rounds(engine))


def known_before(setting: Setting, limits: Limits) -> tuple[Federation, list[RoundRecord]]:
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


LIMITS: Limits = {(0, 0): "3/5", (2, 0): "1/5", (1, 1): "2/5", (3, 1): "2/5", (2, 2): "3/5", (5, 2): "3/5"}
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
