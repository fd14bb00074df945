"""The order of all sums: by the ceilings up to which clients trained, whatever they were sent."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from fjord.core.width import Width, WidthSpace
from fjord.federated.merge_order import MergeQueue, merge_rank
from fjord.federated.validation import AcceptedUpdate
from fjord.training.assignment import Assignment, ClientUpdate

WIDTHS = [Width(i, 5) for i in range(1, 6)]


def accepted(client_id: int, sent: Width, trained: Width) -> AcceptedUpdate:
    space = WidthSpace.of([Width(1)])
    assignment = Assignment(client_id, 0, sent, 0.1, {}, space, {"w": torch.zeros(1)})
    update = ClientUpdate(client_id, {}, 1, 0.0, {Width(1): 1}, {Width(1): 1}, 0)
    return AcceptedUpdate(assignment, replace(assignment, ceiling=trained), update)


@given(st.lists(st.tuples(st.sampled_from(WIDTHS), st.sampled_from(WIDTHS)), max_size=12))
def test_updates_come_out_sorted_by_what_was_trained_though_sent_otherwise(pairs):
    updates = [accepted(i, max(pair), min(pair)) for i, pair in enumerate(pairs)]
    arriving = sorted(updates, key=lambda each: merge_rank(each.sent))
    queue = MergeQueue()
    merged = []
    for update in arriving:
        merged += queue.add(update)
    merged += queue.rest()
    expected = sorted(updates, key=lambda each: merge_rank(each.trained))
    assert [each.sent.client_id for each in merged] == [each.sent.client_id for each in expected]


@given(st.lists(st.sampled_from(WIDTHS), max_size=12))
def test_clients_that_trained_all_they_were_sent_never_wait(ceilings):
    queue = MergeQueue()
    ordered = sorted(enumerate(ceilings), key=lambda pair: (-pair[1], pair[0]))
    for client_id, ceiling in ordered:
        update = accepted(client_id, ceiling, ceiling)
        assert list(queue.add(update)) == [update]
    assert list(queue.rest()) == []
