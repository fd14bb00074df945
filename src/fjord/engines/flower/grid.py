"""A Grid in this process, for tests: the same apps and the same bytes as over a network, without sockets and Ray.

It uses names of flwr that are not public, and is the only file that does.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fjord.core.errors import UserError

try:
    from flwr.app.message.message import make_message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    raise UserError(
        f"this grid is made for flwr 1.41 and 1.42; flwr {version('flwr')} has other inner names: {error}"
    ) from error

NodeConfig = Mapping[str, bool | int | float | str]


class LocalGrid(Grid):
    """Answers every message when it is pushed, by running the client's app.

    `on_reply` sees each message with its reply and returns what arrives: another reply, or None for nothing.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[NodeConfig],
        on_reply: Callable[[Message, Message], Message | None] | None = None,
    ) -> None:
        self._run = Run.create_empty(run_id=1)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.on_reply = app, on_reply
        self.contexts = {
            100 + i: Context(
                run_id=1, node_id=100 + i, node_config=dict(c), state=RecordDict(), run_config={}
            )
            for i, c in enumerate(nodes)
        }
        self.replies: dict[str, Message] = {}
        self.sizes: list[tuple[str, int, int]] = []
        """For each message its kind, and the bytes of its content there and back."""

    def set_run(self, run: Run) -> None:
        """Take another run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes."""
        return [NodeInfo(node_id=node) for node in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the client's app on each message."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message_id = message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        sent, down = _over_the_wire(message)
        try:
            reply = self.app(sent, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as all of Flower's runtimes do
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        arriving = self.on_reply(message, reply) if self.on_reply else reply
        if arriving is not None:
            self.replies[message_id], up = _over_the_wire(arriving)
            self.sizes.append((message.metadata.message_type, down, up))
        return message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push, and pull at once."""
        return self.pull_messages(self.push_messages(messages))


def content_bytes(content: RecordDict) -> int:
    """Return how many bytes a message's content is on the wire."""
    return sum(len(found.deflate()) for found in get_all_nested_objects(content).values())


def _over_the_wire(message: Message) -> tuple[Message, int]:
    """Return a message as it arrives at the other end, and the bytes of its content."""
    if message.has_error():
        return message, 0
    objects = {
        key: found.deflate() for key, found in get_all_nested_objects(message.content).items()
    }
    content = inflate_object_from_contents(message.content.object_id, dict(objects))
    assert isinstance(content, RecordDict)
    return make_message(message.metadata, content), sum(map(len, objects.values()))
