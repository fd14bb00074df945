"""Sends messages through a Grid and collects the replies, matched by message id, until a deadline."""

import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

SHORTEST, LONGEST = 0.01, 0.25
"""Seconds between two looks for replies: a twentieth of the time already waited, within these bounds."""


class MessageBroker:
    """A Grid with deadlines."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def send(self, node: int, kind: str, content: RecordDict, end: float) -> str | None:
        """Push one message that has to be answered before `end` on the monotonic clock; return its id.

        One at a time: together, all slices of a round would be in memory twice.
        """
        left = end - time.monotonic()
        # It expires a little before we stop waiting, so that it is known as late and not worked on later.
        message = Message(
            content, dst_node_id=node, message_type=kind, ttl=max(0.1, left - min(3.0, left / 10))
        )
        ids = list(self.grid.push_messages([message]))
        return ids[0] if ids else None

    def collect(self, message_ids: Iterable[str], end: float) -> dict[str, Message]:
        """Return the replies that come before `end`, each under the id of the message it answers."""
        waiting, found, started = set(message_ids), dict[str, Message](), time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                found[reply.metadata.reply_to_message_id] = reply
            waiting -= found.keys()
            now = time.monotonic()
            if now >= end or not waiting:
                break
            time.sleep(min(max(SHORTEST, (now - started) / 20), LONGEST, end - now))
        return found
