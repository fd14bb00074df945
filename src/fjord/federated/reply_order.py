"""Good replies, and the order in which they are merged."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fjord.core.width import Width
from fjord.training.local import Assignment, ClientUpdate

MergeRank = tuple[Width, int]
"""A negative ceiling and a client: the strongest come first, and this is the order of all sums."""


@dataclass(frozen=True, order=True)
class AcceptedUpdate:
    """A good reply."""

    place: MergeRank
    """By the ceiling up to which the client trained."""
    turn: MergeRank = field(compare=False)
    """By the ceiling it was sent, which is the order of the replies."""
    bytes_down: int = field(compare=False)
    task: Assignment = field(compare=False)
    """What it answers: all that was sent, or a smaller part of it."""
    update: ClientUpdate = field(compare=False)

    @property
    def ceiling(self) -> Width:
        """The ceiling up to which the client trained."""
        return -self.place[0]


def in_merge_order(answers: Iterable[AcceptedUpdate]) -> Iterator[AcceptedUpdate]:
    """Yield answers by place; only those of clients that trained less than they were sent have to wait.

    So a round gives, bit for bit, what it gives when those ceilings are known before it begins.
    """
    waiting: list[AcceptedUpdate] = []
    for answer in answers:
        while waiting and waiting[0].place < answer.turn:
            yield heapq.heappop(waiting)
        if answer.place == answer.turn:
            yield answer
        else:
            heapq.heappush(waiting, answer)
        del answer  # or it would stay in memory while the next one comes
    while waiting:
        yield heapq.heappop(waiting)
