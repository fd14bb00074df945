"""The order in which updates are merged, which is the order of all sums."""

import heapq
from collections.abc import Iterator

from fjord.core.width import Width
from fjord.federated.validation import AcceptedUpdate
from fjord.training.assignment import Assignment

MergeRank = tuple[Width, int]
"""A negative ceiling and a client: the strongest clients come first."""


def merge_rank(assignment: Assignment) -> MergeRank:
    """Return where a client stands in the order of its round."""
    return (-assignment.ceiling, assignment.client_id)


class MergeQueue:
    """Puts updates in the order of the ceilings up to which clients trained.

    Updates come in the order of the ceilings that were sent, so only those of clients that trained
    less have to wait. A round then gives, bit for bit, what it gives when the lower ceilings are
    known before it begins.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[MergeRank, AcceptedUpdate]] = []

    def add(self, accepted: AcceptedUpdate) -> Iterator[AcceptedUpdate]:
        """Take one update; yield those whose turn has come."""
        yield from self._waiting_before(merge_rank(accepted.sent))
        if merge_rank(accepted.trained) == merge_rank(accepted.sent):
            yield accepted
        else:
            heapq.heappush(self._waiting, (merge_rank(accepted.trained), accepted))

    def rest(self) -> Iterator[AcceptedUpdate]:
        """Yield the updates that still wait, at the end of a round."""
        while self._waiting:
            yield heapq.heappop(self._waiting)[1]

    def _waiting_before(self, rank: MergeRank) -> Iterator[AcceptedUpdate]:
        while self._waiting and self._waiting[0][0] < rank:
            yield heapq.heappop(self._waiting)[1]
