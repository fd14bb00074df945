"""The Flower engine: clients train on the nodes of a Grid; the round loop, checks and sums are the usual ones."""

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from flwr.app import Message
from flwr.serverapp import Grid as Grid

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import TestSet
from fjord.elastic.model import ElasticModel
from fjord.engines.flower.broker import MessageBroker
from fjord.engines.flower.codec import decode_update, encode_task
from fjord.engines.flower.nodes import NodeRegistry, is_late, last_line
from fjord.engines.in_process import InProcessEngine
from fjord.federated.clock import held_width
from fjord.federated.validation import validate_reply
from fjord.training.evaluate import ExampleScores
from fjord.training.local import Assignment, ClientTrainer, ClientUpdate


@dataclass(frozen=True)
class RunSpec:
    """How a client makes the same experiment: the recipe, what is set otherwise, and which of its models."""

    recipe: str
    settings: tuple[str, ...] = ()
    stage: int = 0
    known: str = field(default="", compare=False)
    """The description of that model, where a device has made it before; it does not travel."""

    def fields(self) -> dict[str, int | str]:
        """Return it as it travels."""
        return {"recipe": self.recipe, "settings": shlex.join(self.settings), "stage": self.stage}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return what was sent."""
        return cls(record["recipe"], tuple(shlex.split(record["settings"])), record["stage"])


@dataclass(frozen=True)
class ReplyPolicy:
    """How long a round waits, and for how many."""

    deadline: float = 600.0
    """Seconds from the first message of a round to the last reply that counts."""
    min_replies: int = 1
    """With fewer good replies, a round leaves the model as it was."""

    def __post_init__(self) -> None:
        if not 0 < self.deadline < 1e7:
            raise UserError(f"deadline={self.deadline} must be a number of seconds above 0")
        if self.min_replies < 1:
            raise UserError(f"min_replies={self.min_replies} must be at least 1")


class FlowerEngine:
    """Trains clients on the nodes of a Grid; scores on this machine."""

    def __init__(
        self,
        grid: Grid,
        trainer: ClientTrainer,
        test: TestSet,
        order: RunSpec,
        patience: ReplyPolicy,
        space: WidthSpace,
    ) -> None:
        self.local, self.parts = InProcessEngine(trainer, test), trainer.parts
        self.plan, self.space, self.order, self.patience = (
            trainer.model.plan,
            space,
            order,
            patience,
        )
        self.post = MessageBroker(grid)
        self.nodes = NodeRegistry(self.post, space.widths[0], order.fields())
        self.facts: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Start."""
        self.local.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Let go."""
        self.local.__exit__(*error)

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model here: the test set is the server's."""
        return self.local.test(model, widths)

    def train(self, tasks: Iterable[Assignment]) -> Iterator[tuple[Assignment, ClientUpdate | str]]:
        """Train clients; all replies are in before the first is given, in the order of the tasks."""
        self.nodes.refresh(
            self.patience.deadline
        )  # first, as tasks depend on what the nodes can carry
        end = time.monotonic() + self.patience.deadline
        self.facts = {
            "deadline": self.patience.deadline,
            "sent": 0,
            "answered": 0,
            "late": 0,
            "failed": 0,
        }
        carriers: dict[str, int] = {}
        sent = [(task, self._send(task, end, carriers)) for task in tasks]
        replies = self.post.collect(carriers, end)
        self.nodes.late = {
            node for message, node in carriers.items() if is_late(replies.get(message))
        }
        answers = [
            (task, self._answer(task, replies.pop(s, None)) if s in carriers else s)
            for task, s in sent
        ]
        yield from self._enough(answers)

    def _send(self, task: Assignment, end: float, carriers: dict[str, int]) -> str:
        """Send a task; return the id of its message, and note which node carries it, or say why it is not sent."""
        node = self.nodes.choose(
            task.client_id, held_width(self.plan, self.space, task.held), task.bytes
        )
        if isinstance(node, str):
            return node
        message = self.post.send(
            node, "train", encode_task(task, self.plan, self.order.fields()), end
        )
        if not message:
            return "its message could not be sent"
        self.facts["sent"] += 1
        carriers[message] = node
        return message

    def _answer(self, task: Assignment, reply: Message | None) -> ClientUpdate | str:
        """Return a reply as an update, or what is wrong with it."""
        if reply is None or is_late(reply):
            self.facts["late"] += 1
            return f"no reply within {self.patience.deadline:g} s"
        if reply.has_error():
            self.facts["failed"] += 1
            return f"its node failed: {last_line(reply.error.reason)} (code {reply.error.code})"
        self.facts["answered"] += 1
        return decode_update(task, reply.content, self.parts)

    def _is_good(self, task: Assignment, answer: ClientUpdate | str) -> bool:
        return not isinstance(answer, str) and not isinstance(
            validate_reply(task, answer, self.parts), str
        )

    def _enough(
        self, answers: list[tuple[Assignment, ClientUpdate | str]]
    ) -> Iterator[tuple[Assignment, ClientUpdate | str]]:
        """Yield the answers; if too few are good, none counts."""
        wanted = self.patience.min_replies
        good = 0 if wanted == 1 else sum(self._is_good(task, a) for task, a in answers)
        few = (
            f"left out: {good} of the {wanted} replies that a round needs were good"
            if 1 < wanted > good
            else ""
        )
        while answers:
            task, answer = answers.pop(0)
            yield task, answer if isinstance(answer, str) else few or answer
