"""A Grid in this process: the apps and the bytes of a network, without sockets and Ray.

It uses names of flwr that are not public.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fjord.engines.flower.codec import wire_objects

NodeConfig = Mapping[str, bool | int | float | str]


class LocalGrid(Grid):
    """Answers every message when it is pushed, by running the client's app.

    `on_reply` sees each message with its reply and returns what arrives: a reply, or None.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[NodeConfig],
        on_reply: Callable[[Message, Message], Message | None] | None = None,
    ) -> None:
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        TaskIdentity.task_id = 1
        self._run = Run.create_empty(run_id=1)
        self.app = app
        self.on_reply = on_reply
        self.contexts: dict[int, Context] = {}
        for node_id, config in enumerate(nodes, 100):
            self.contexts[node_id] = Context(
                run_id=1,
                node_id=node_id,
                node_config=dict(config),
                state=RecordDict(),
                run_config={},
            )
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
        return [self._push_message(message) for message in messages]

    def _push_message(self, message: Message) -> str:
        message_id = str(uuid.uuid4())
        message.metadata.__dict__["_message_id"] = message_id
        arrived, bytes_down = _send_over_wire(message)
        try:
            reply = self.app(arrived, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as all of Flower's runtimes do
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        if self.on_reply is not None:
            reply = self.on_reply(message, reply)
        if reply is not None:
            self.replies[message_id], bytes_up = _send_over_wire(reply)
            self.sizes.append((message.metadata.message_type, bytes_down, bytes_up))
        return message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        present = [message_id for message_id in message_ids if message_id in self.replies]
        return [self.replies.pop(message_id) for message_id in present]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push, and pull at once."""
        return self.pull_messages(self.push_messages(messages))


def _send_over_wire(message: Message) -> tuple[Message, int]:
    """Return a message as it arrives at the other end, and the bytes of its content."""
    if message.has_error():
        return message, 0
    objects = wire_objects(message.content)
    size = sum(map(len, objects.values()))
    content = inflate_object_from_contents(message.content.object_id, dict(objects))
    assert isinstance(content, RecordDict)
    return make_message(message.metadata, content), size
