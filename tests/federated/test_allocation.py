"""A smaller assignment is that of its ceiling; a reply that claims to be smaller is checked."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fed_oracles import Setting, assert_identical, assignments
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.core.width import Width
from fjord.devices.tiers import ListedDevices, VaryingDevices
from fjord.engines.in_process import InProcessEngine
from fjord.federated.rounds import Federation
from fjord.federated.validation import AcceptedUpdate, find_fault, validate_reply
from fjord.training.assignment import Assignment, ClientUpdate, Reduction, Rejected


def task_of(setting: Setting, ceiling: Width, t: int) -> tuple[Federation, Assignment]:
    """The assignment of client 0 in some round, had it this ceiling; others keep SCAFFOLD busy."""
    devices = VaryingDevices(
        ListedDevices([Width(1), Width(3, 5)]),
        lambda client, r, usual: usual if client or r < t else ceiling,
    )
    federation = replace(setting, devices=devices, sizes=(5, 4), rounds=t + 1).make()
    with InProcessEngine(federation) as engine:
        rounds = federation.rounds(engine)
        for _ in range(t):
            next(rounds)
        found = next(task for task in assignments(federation, t) if task.client_id == 0)
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
    found = federation.allocator.at_ceiling(task, Width(fits, 5))
    if fits >= sent:
        assert found is None
        return
    _, wanted = task_of(setting, Width(fits, 5), t)
    assert found is not None
    assert (found.client_id, found.round_index, found.lr, found.space) == (
        0,
        t,
        wanted.lr,
        wanted.space,
    )
    for name in ("units", "tensors", "correction"):
        assert list(getattr(found, name)) == list(getattr(wanted, name))
        assert_identical(getattr(found, name), getattr(wanted, name))


def good(task: Assignment, reduced: Reduction | None) -> ClientUpdate:
    counts = {task.space.largest: 2}
    tensors = {key: t.clone() for key, t in task.tensors.items()}
    return ClientUpdate(task.client_id, tensors, 5, 0.5, counts, counts, 10, reduced)


FAULTS: dict[str, tuple[Reduction | Any, str]] = {
    "as much as was sent": (Reduction(Width(4, 5), "x"), "no smaller part"),
    "more than was sent": (Reduction(Width(1), "x"), "no smaller part"),
    "not in P": (Reduction(Width(1, 2), "x"), "no smaller part"),
    "tiny": (Reduction(Width(1, 10**9), "x"), "no smaller part"),
    "a float": (Reduction(0.4, "x"), "reduction is"),  # type: ignore[arg-type]
    "text": (Reduction("2/5", "x"), "reduction is"),  # type: ignore[arg-type]
    "no record": ("2/5", "reduction is"),
    "true": (True, "reduction is"),
    "a reason of two lines": (Reduction(Width(2, 5), "a\nb"), "its reason"),
    "an endless reason": (Reduction(Width(2, 5), "a" * 10**6), "its reason"),
    "a reason that is none": (Reduction(Width(2, 5), None), "its reason"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("slice_of", ["4/5", "2/5"])
def test_a_reply_that_says_it_is_smaller_must_be_a_smaller_part_of_what_was_sent(
    name: str, slice_of: str
) -> None:
    federation, task = task_of(Setting(), Width(4, 5), 0)
    reduced, words = FAULTS[name]
    part = task if slice_of == "4/5" else federation.allocator.at_ceiling(task, Width(2, 5))
    assert part is not None
    found = validate_reply(task, good(part, reduced), federation.allocator)
    assert isinstance(found, Rejected)
    assert words in found.reason


def test_the_slice_must_be_that_of_the_ceiling_it_names() -> None:
    federation, task = task_of(Setting(kind="batchnorm"), Width(4, 5), 0)
    parts = {w: federation.allocator.at_ceiling(task, w) for w in (Width(2, 5), Width(3, 5))}
    small, middle = parts[Width(2, 5)], parts[Width(3, 5)]
    assert small is not None
    assert middle is not None
    fine = good(small, Reduction(Width(2, 5), "out of memory"))
    accepted = validate_reply(task, fine, federation.allocator)
    assert isinstance(accepted, AcceptedUpdate)
    assert accepted.trained.space == small.space
    assert_identical(accepted.trained.tensors, small.tensors)
    for wrong in (
        good(small, None),  # a smaller slice without a word
        good(task, Reduction(Width(2, 5), "x")),
        good(middle, Reduction(Width(2, 5), "x")),
        replace(fine, steps={Width(4, 5): 1}),  # widths that it no longer had
        replace(fine, client_id=1),
        replace(fine, tensors={key: t * torch.nan for key, t in fine.tensors.items()}),
    ):
        assert isinstance(validate_reply(task, wrong, federation.allocator), Rejected)
    assert find_fault(task, fine) is not None
