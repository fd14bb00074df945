"""Which node trains which client: nodes bound to a client of their own, and nodes that take any."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fjord.core.errors import UserError
from fjord.core.width import Width, parse_width
from fjord.engines.flower.broker import MessageBroker
from fjord.training.assignment import Rejected

QUERY_SECONDS = 60.0
"""How long the first round waits for all nodes to say what they are."""
MEASURE_SECONDS = 600.0
"""How long a node may take to answer: one with a budget measures first."""
POLL_SECONDS = 0.25
MAX_PROFILE_LENGTH = 100_000
MAX_REASON_LENGTH = 300
MESSAGE_EXPIRED = 3
"""Flower's code for a message that nobody answered in time."""


@dataclass
class NodeStatus:
    """What a node said of itself when it was asked."""

    client_id: int | None = None
    """The one client it is; None takes any (the paper's over-provisioning)."""
    ceiling: Width | None = None
    """What it can carry; None leaves that to the recipe."""
    profile: str = ""
    """What it measured, as JSON, if it has a budget."""
    fault: str = ""
    """Why it cannot be used."""
    messages: int = 0
    """How many messages it was sent this round: each starts a process, which takes longest."""
    bytes_sent: int = 0

    def carries(self, width: Width) -> bool:
        """Say whether it can carry a submodel."""
        return self.ceiling is None or width <= self.ceiling


class NodeRegistry:
    """The nodes that are connected, each asked once."""

    def __init__(
        self, broker: MessageBroker, smallest: Width, spec: Mapping[str, int | str]
    ) -> None:
        self.broker = broker
        self.smallest = smallest
        self.spec = dict(spec)
        self.known: dict[int, NodeStatus] = {}
        self.online: dict[int, NodeStatus] = {}
        self.asked: dict[str, int] = {}
        self.late: set[int] = set()
        """Nodes that did not answer last round: busy, or dead and not yet known to be."""

    def refresh(self, seconds: float) -> None:
        """Look who is there and ask the new ones; wait for answers only while nobody is known."""
        now = time.monotonic()
        query_end = now + min(seconds, QUERY_SECONDS)
        measure_end = now + min(seconds, MEASURE_SECONDS)
        while True:
            present = sorted(self.broker.grid.get_node_ids())
            self._ask(self._strangers(present))
            someone_known = any(node in self.known for node in present)
            self._listen(time.monotonic() if someone_known else query_end)
            self.online = {node: self.known[node] for node in present if node in self.known}
            limit = measure_end if self.asked else query_end
            if self.online or time.monotonic() >= limit:
                break
            time.sleep(POLL_SECONDS)
        for status in self.online.values():
            status.messages = 0
            status.bytes_sent = 0

    def _strangers(self, present: list[int]) -> list[int]:
        asked = set(self.asked.values())
        return [node for node in present if node not in self.known and node not in asked]

    def _ask(self, strangers: list[int]) -> None:
        deadline = time.monotonic() + MEASURE_SECONDS
        for node in strangers:
            content = RecordDict({"order": ConfigRecord(self.spec)})  # type: ignore[arg-type]
            message_id = self.broker.send(node, "query", content, deadline)
            if message_id:
                self.asked[message_id] = node

    def _listen(self, deadline: float) -> None:
        """Take in the answers; a node whose message expired is asked again."""
        for message_id, reply in self.broker.collect(self.asked, deadline).items():
            node = self.asked.pop(message_id)
            if not is_late(reply):
                self.known[node] = node_status(reply)

    def choose_node(self, client_id: int, width: Width, num_bytes: int) -> int | Rejected:
        """Return the node that trains a client: the least loaded that can carry its submodel."""
        candidates = self._nodes_of(client_id)
        is_own = bool(candidates)
        if not is_own:
            candidates = self._nodes_of(None)
        fitting = {node: status for node, status in candidates.items() if status.carries(width)}
        if not is_own:
            punctual = {node: fitting[node] for node in fitting if node not in self.late}
            fitting = punctual or fitting
        if not fitting:
            whose = "its" if is_own else "any"
            return self._too_narrow(candidates, width, whose) or self._nobody_for(client_id)
        chosen = min(fitting, key=lambda node: _load(fitting[node]))
        fitting[chosen].messages += 1
        fitting[chosen].bytes_sent += num_bytes
        return chosen

    def _nodes_of(self, client_id: int | None) -> dict[int, NodeStatus]:
        """Return the usable nodes that are one client, or (None) that take any."""
        nodes = {}
        for node, status in self.online.items():
            if not status.fault and status.client_id == client_id:
                nodes[node] = status
        return nodes

    def _too_narrow(
        self, candidates: Mapping[int, NodeStatus], width: Width, whose: str
    ) -> Rejected | None:
        """Say that no node can carry so much, if that is what is wrong."""
        ceilings = [each.ceiling for each in candidates.values() if each.ceiling is not None]
        if not ceilings:
            return None
        widest = max(ceilings)
        if widest < self.smallest:
            return Rejected(
                f"the ceiling of {whose} node, {widest}, is below the smallest width "
                f"{self.smallest}"
            )
        return Rejected(
            f"the ceiling of {whose} node is at most {widest}, and it would have to carry {width}"
        )

    def _nobody_for(self, client_id: int) -> Rejected:
        """Say that no node can be used, with the fault of the client's own node, or of another."""
        faulty = {node: status for node, status in self.online.items() if status.fault}
        own_first = sorted(faulty, key=lambda node: faulty[node].client_id != client_id)
        if not own_first:
            return Rejected("no usable node is connected for it")
        node = own_first[0]
        return Rejected(f"no usable node is connected for it: node {node}: {faulty[node].fault}")

    def lowered_ceiling(self, client_id: int, ceiling: Width) -> Width:
        """Return a client's ceiling, lower if its own node says that it can carry less."""
        limits = []
        for status in self.online.values():
            if status.client_id == client_id and status.ceiling is not None:
                limits.append(status.ceiling)
        if not limits:
            return ceiling
        return max(min(ceiling, *limits), self.smallest)


def _load(status: NodeStatus) -> tuple[int, int]:
    return status.messages, status.bytes_sent


def node_status(reply: Message) -> NodeStatus:
    """Return what a node says of itself."""
    if reply.has_error():
        return NodeStatus(fault=last_line(reply.error.reason))
    try:
        record = reply.content.config_records["node"]
    except KeyError:
        return NodeStatus(fault="it did not say what it is")
    client_id = record.get("client-id")
    if client_id is not None and type(client_id) is not int:
        return NodeStatus(fault=f"client-id={client_id!r:.40} is not a whole number")
    ceiling: Width | None = None
    if record.get("ceiling") is not None:
        try:
            ceiling = parse_width(str(record["ceiling"])[:40])
        except UserError as error:
            return NodeStatus(fault=f"ceiling: {error}")
    profile = str(record.get("profile", ""))[:MAX_PROFILE_LENGTH]
    fault = last_line(str(record["fault"])) if "fault" in record else ""
    return NodeStatus(client_id, ceiling, profile, fault)


def last_line(reason: str | None) -> str:
    """Return the end of an error, which may be a whole traceback."""
    lines = [line.strip() for line in (reason or "").splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return "no reason given"
    return lines[-1][-MAX_REASON_LENGTH:]


def is_late(reply: Message | None) -> bool:
    """Say whether a message was not answered in time."""
    if reply is None:
        return True
    return reply.has_error() and reply.error.code == MESSAGE_EXPIRED
