"""Sends messages through a Grid and collects the replies, matched by id, until a deadline."""

import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 0.25
"""Seconds between two looks for replies: a twentieth of the time waited, within these bounds."""


class MessageBroker:
    """A Grid with deadlines."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def send(
        self,
        node: int,
        kind: str,
        content: RecordDict,
        deadline: float,
    ) -> str | None:
        """Push one message to be answered before `deadline` (monotonic clock); return its id.

        One at a time: together, all slices of a round would be in memory twice.
        """
        seconds = deadline - time.monotonic()
        # It expires a little before we stop waiting: then it is known as late, and no node works
        # on it in the next round.
        ttl = max(0.1, seconds - min(3.0, seconds / 10))
        message = Message(content, dst_node_id=node, message_type=kind, ttl=ttl)
        ids = list(self.grid.push_messages([message]))
        return ids[0] if ids else None

    def collect(self, message_ids: Iterable[str], deadline: float) -> dict[str, Message]:
        """Return the replies that come before `deadline`, by the id of the message they answer."""
        started = time.monotonic()
        waiting = set(message_ids)
        replies: dict[str, Message] = {}
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                replies[reply.metadata.reply_to_message_id] = reply
            waiting -= replies.keys()
            now = time.monotonic()
            if now >= deadline or not waiting:
                break
            pause = max(SHORTEST_PAUSE, (now - started) / 20)
            time.sleep(min(pause, LONGEST_PAUSE, deadline - now))
        return replies
