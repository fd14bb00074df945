"""Which node trains which client: nodes bound to a client of their own, and nodes that take any."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fjord.core.width import Width, parse_width
from fjord.engines.flower.broker import MessageBroker

QUERY_SECONDS = 60.0
"""How long the first round waits for all nodes to say what they are."""
MEASURE_SECONDS = 600.0
"""How long a node may take to answer: one with a budget measures first."""
MOST_TOLD = 100_000
MESSAGE_EXPIRED = 3
"""Flower's code for a message that nobody answered in time."""


@dataclass
class NodeStatus:
    """What a node told of itself when it was asked."""

    client_id: int | None = None
    """The one client it is; None takes any (the paper's over-provisioning)."""
    ceiling: Width | None = None
    """What it can carry; None leaves that to the recipe."""
    profile: str = ""
    """What it measured, as JSON, where it has a budget."""
    fault: str = ""
    """Why it cannot be used."""
    load: tuple[int, int] = (0, 0)
    """The messages and the bytes it has been sent this round: each message starts a process, which takes longest."""

    def carries(self, width: Width) -> bool:
        """Say whether it can carry a submodel."""
        return self.ceiling is None or width <= self.ceiling


class NodeRegistry:
    """The nodes that are connected, each asked once."""

    def __init__(
        self, post: MessageBroker, smallest: Width, order: Mapping[str, int | str]
    ) -> None:
        self.post, self.smallest, self.order = post, smallest, dict(order)
        self.known: dict[int, NodeStatus] = {}
        self.online: dict[int, NodeStatus] = {}
        self.asked: dict[str, int] = {}
        self.late: set[int] = set()
        """Those that did not answer last round: busy, or dead and not yet known to be."""

    def refresh(self, seconds: float) -> None:
        """Look who is there and ask those that are new; wait for answers only while nobody is known."""
        now = time.monotonic()
        end, last = now + min(seconds, QUERY_SECONDS), now + min(seconds, MEASURE_SECONDS)
        while True:
            present = sorted(self.post.grid.get_node_ids())
            self._ask(
                [
                    node
                    for node in present
                    if node not in self.known and node not in self.asked.values()
                ]
            )
            self._listen(time.monotonic() if any(node in self.known for node in present) else end)
            self.online = {node: self.known[node] for node in present if node in self.known}
            if self.online or time.monotonic() >= (last if self.asked else end):
                break
            time.sleep(0.25)
        for node in self.online.values():
            node.load = (0, 0)

    def _ask(self, strangers: list[int]) -> None:
        end = time.monotonic() + MEASURE_SECONDS
        for node in strangers:
            content = RecordDict({"order": ConfigRecord(self.order)})  # type: ignore[arg-type]
            message = self.post.send(node, "query", content, end)
            if message:
                self.asked[message] = node

    def _listen(self, end: float) -> None:
        """Take in the answers; a node whose message expired is asked again."""
        for message, reply in self.post.collect(self.asked, end).items():
            node = self.asked.pop(message)
            if not is_late(reply):
                self.known[node] = node_status(reply)

    def choose(self, client_id: int, width: Width, size: int) -> int | str:
        """Return the node that trains a client, the least loaded that can carry its part, or why there is none."""
        usable = {node: info for node, info in self.online.items() if not info.fault}
        own = {node: info for node, info in usable.items() if info.client_id == client_id}
        free = {node: info for node, info in usable.items() if info.client_id is None}
        fitting = {node: info for node, info in (own or free).items() if info.carries(width)}
        fitting = {
            node: info for node, info in fitting.items() if own or node not in self.late
        } or fitting
        if not fitting:
            return self._too_narrow(own or free, width, "its" if own else "any") or self._nobody(
                client_id
            )
        chosen = min(fitting, key=lambda node: fitting[node].load)
        messages, sent = fitting[chosen].load
        fitting[chosen].load = messages + 1, sent + size
        return chosen

    def _too_narrow(self, asked: Mapping[int, NodeStatus], width: Width, whose: str) -> str:
        """Say that no node can carry so much, if that is what is wrong."""
        ceilings = [info.ceiling for info in asked.values() if info.ceiling is not None]
        if not ceilings:
            return ""
        if max(ceilings) < self.smallest:
            return f"the ceiling of {whose} node, {max(ceilings)}, is below the smallest width {self.smallest}"
        return f"the ceiling of {whose} node is at most {max(ceilings)}, and it would have to carry {width}"

    def _nobody(self, client_id: int) -> str:
        faulty = {node: info for node, info in self.online.items() if info.fault}
        named = sorted(
            faulty, key=lambda node: faulty[node].client_id != client_id
        )  # its own first
        fault = f": node {named[0]}: {faulty[named[0]].fault}" if named else ""
        return f"no usable node is connected for it{fault}"

    def lowered(self, client_id: int, usual: Width) -> Width:
        """Return a client's ceiling where its own node says that it can carry less."""
        told = [
            n.ceiling
            for n in self.online.values()
            if n.client_id == client_id and n.ceiling is not None
        ]
        return max(min(usual, *told), self.smallest) if told else usual


def node_status(reply: Message) -> NodeStatus:
    """Return what a node says of itself."""
    if reply.has_error():
        return NodeStatus(fault=last_line(reply.error.reason))
    try:
        told = reply.content.config_records["node"]
        client_id, ceiling = told.get("client-id"), told.get("ceiling")
        if not (client_id is None or type(client_id) is int):
            return NodeStatus(fault=f"client-id={client_id!r:.40} is not a whole number")
        profile = str(told.get("profile", ""))[:MOST_TOLD]
        fault = last_line(str(told["fault"])) if "fault" in told else ""
        return NodeStatus(
            client_id, None if ceiling is None else parse_width(str(ceiling)[:40]), profile, fault
        )
    except KeyError:
        return NodeStatus(fault="it did not say what it is")
    except ValueError as error:
        return NodeStatus(fault=f"ceiling: {error}")


def last_line(reason: str | None) -> str:
    """Return the end of an error, which may be a whole traceback."""
    return (
        [line.strip() for line in (reason or "").splitlines() if line.strip()]
        or ["no reason given"]
    )[-1][-300:]


def is_late(reply: Message | None) -> bool:
    """Say whether a message was not answered in time."""
    return reply is None or (reply.has_error() and reply.error.code == MESSAGE_EXPIRED)
