"""Settings, rounds and weights that the tests of strategies share."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import fed_oracles as fed
from fed_oracles import Setting, State, cohort_of

from fjord.core.width import Width, WidthSpace
from fjord.devices.tiers import ListedDevices, VaryingDevices

FULL = Setting(
    "dense",
    "fedavg",
    space=WidthSpace.of(["1"]),
    ceilings=("1",) * 4,
    sizes=(4, 8, 16, 6),
    rounds=3,
)


def rounds(setting: Setting) -> Iterator[tuple[int, list[int], float, list[list]]]:
    """Yield each round: its index, its clients, its step size and their minibatches."""
    federation = setting.make()
    for t in range(setting.rounds):
        clients = sorted(client for client, _ in cohort_of(federation, t))
        yield (
            t,
            clients,
            federation.schedule.lr_at(t),
            [fed.batches(federation, c, t) for c in clients],
        )


def start(setting: Setting) -> State:
    return fed.snapshot(setting.make().model)


def add(a: State, b: State, factor: float = 1.0) -> State:
    return {key: a[key] + factor * b[key] for key in a}


def swinging(setting: Setting) -> Setting:
    """Let every client be weak in every second round."""
    usual = ListedDevices([Fraction(c) for c in setting.ceilings])
    lowered = VaryingDevices(
        usual, lambda client, t, width: Width(2, 5) if (t + client) % 2 else width
    )
    return replace(setting, devices=lowered)
