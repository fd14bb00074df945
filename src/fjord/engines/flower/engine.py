"""The Flower engine: clients train on the nodes of a Grid."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid as Grid

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.elastic.model import ElasticModel
from fjord.engines.flower.broker import MessageBroker
from fjord.engines.flower.codec import decode_update, encode_task
from fjord.engines.flower.nodes import NodeRegistry, is_late, last_line
from fjord.engines.flower.run_spec import RunSpec
from fjord.engines.in_process import InProcessEngine
from fjord.federated.clock import covering_width
from fjord.federated.engine import Reply
from fjord.federated.population import RoundClients
from fjord.federated.rounds import Federation
from fjord.federated.validation import AcceptedUpdate, validate_reply
from fjord.training.assignment import Assignment, Rejected
from fjord.training.evaluate import ExampleScores

Item = TypeVar("Item")


@dataclass(frozen=True)
class ReplyPolicy:
    """How long a round waits for replies, and how many it needs."""

    deadline: float = 600.0
    """Seconds from the first message of a round to the last reply that counts."""
    min_replies: int = 1
    """With fewer good replies, a round leaves the model as it was."""

    def __post_init__(self) -> None:
        if not 0 < self.deadline < 1e7:
            raise UserError(
                "must be a number of seconds above 0", field="deadline", value=self.deadline
            )
        if self.min_replies < 1:
            raise UserError("must be at least 1", field="min_replies", value=self.min_replies)


@dataclass(frozen=True)
class NodeClients:
    """The clients of a round, with lower ceilings where their own nodes can carry less."""

    clients: RoundClients
    nodes: NodeRegistry

    @property
    def round_index(self) -> int:
        """Which round it is."""
        return self.clients.round_index

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.clients.num_clients

    def ceiling(self, client_id: int) -> Width | None:
        """Return what a client can carry, or None if it is not there."""
        ceiling = self.clients.ceiling(client_id)
        if ceiling is None:
            return None
        return self.nodes.lowered_ceiling(client_id, ceiling)


class FlowerEngine:
    """Trains clients on the nodes of a Grid; evaluates on this machine, where the test set is."""

    def __init__(
        self, grid: Grid, federation: Federation, spec: RunSpec, policy: ReplyPolicy
    ) -> None:
        self.federation = federation
        self.spec = spec
        self.policy = policy
        self.local = InProcessEngine(federation)
        self.broker = MessageBroker(grid)
        smallest = federation.space.widths[0]
        self.nodes = NodeRegistry(self.broker, smallest, spec.fields())
        self._metadata: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Start."""
        self.local.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Release everything."""
        self.local.__exit__(*error)

    def clients(self, round_index: int) -> RoundClients:
        """Ask who is connected; return the clients with what they, or their nodes, can carry."""
        self.nodes.refresh(self.policy.deadline)
        simulated = self.federation.population.clients_in(round_index)
        return NodeClients(simulated, self.nodes)

    def evaluate(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model here: the test set is the server's."""
        return self.local.evaluate(model, widths)

    def metadata(self) -> Mapping[str, float]:
        """Return the deadline of the last round, and the messages sent, answered and late."""
        return self._metadata

    def train(self, assignments: Iterable[Assignment]) -> Iterator[tuple[Assignment, Reply]]:
        """Train clients; all replies are in before the first is yielded, in the given order."""
        deadline = time.monotonic() + self.policy.deadline
        self._metadata = {
            "deadline": self.policy.deadline,
            "sent": 0,
            "answered": 0,
            "late": 0,
            "failed": 0,
        }
        sent = [self._send(assignment, deadline) for assignment in assignments]
        messages = {each.message_id: each.node for each in sent if each.message_id}
        replies = self.broker.collect(messages, deadline)
        self.nodes.late = {
            node for message_id, node in messages.items() if is_late(replies.get(message_id))
        }
        outcomes = []
        for each in sent:
            reply = replies.pop(each.message_id, None)
            outcomes.append((each.assignment, self._read_reply(each, reply)))
        yield from self._require_enough(outcomes)

    def _send(self, assignment: Assignment, deadline: float) -> "SentAssignment":
        plan = self.federation.model.plan
        width = covering_width(plan, self.federation.space, assignment.units)
        node = self.nodes.choose_node(assignment.client_id, width, assignment.num_bytes)
        if isinstance(node, Rejected):
            return SentAssignment(assignment, rejected=node)
        content = encode_task(assignment, plan, self.spec.fields())
        message_id = self.broker.send(node, "train", content, deadline)
        if not message_id:
            return SentAssignment(assignment, rejected=Rejected("its message could not be sent"))
        self._metadata["sent"] += 1
        return SentAssignment(assignment, message_id, node)

    def _read_reply(self, sent: "SentAssignment", reply: Message | None) -> Reply:
        """Return what a client answered, or what went wrong."""
        if sent.rejected is not None:
            return sent.rejected
        if reply is None or is_late(reply):
            self._metadata["late"] += 1
            return Rejected(f"no reply within {self.policy.deadline:g} s")
        if reply.has_error():
            self._metadata["failed"] += 1
            reason = last_line(reply.error.reason)
            return Rejected(f"its node failed: {reason} (code {reply.error.code})")
        self._metadata["answered"] += 1
        return decode_update(sent.assignment, reply.content, self.federation.allocator)

    def _require_enough(
        self, replies: list[tuple[Assignment, Reply]]
    ) -> Iterator[tuple[Assignment, Reply]]:
        """Yield the replies; if too few of them are good, none counts."""
        needed = self.policy.min_replies
        if needed == 1:
            yield from _take_all(replies)
            return
        outcomes: list[tuple[Assignment, Reply]] = []
        good = 0
        answered: set[int] = set()
        for assignment, reply in _take_all(replies):
            outcome = validate_reply(assignment, reply, self.federation.allocator)
            outcomes.append((assignment, outcome))
            good += isinstance(outcome, AcceptedUpdate)
            if not isinstance(reply, Rejected):
                answered.add(assignment.client_id)
        reason = f"left out: {good} of the {needed} replies that a round needs were good"
        for assignment, checked in _take_all(outcomes):
            if good < needed and assignment.client_id in answered:
                yield assignment, Rejected(reason)
            else:
                yield assignment, checked


@dataclass(frozen=True)
class SentAssignment:
    """An assignment with the message that carries it to a node, or why it was not sent."""

    assignment: Assignment
    message_id: str = ""
    node: int = 0
    rejected: Rejected | None = None


def _take_all(items: list[Item]) -> Iterator[Item]:
    """Yield the items of a list and let go of each: replies are large."""
    while items:
        yield items.pop(0)
