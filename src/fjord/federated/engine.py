"""What an engine is: where clients train, and who of them is there."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, Self

from fjord.core.width import Width
from fjord.elastic.model import ElasticModel
from fjord.federated.population import RoundClients
from fjord.federated.validation import AcceptedUpdate
from fjord.training.assignment import Assignment, ClientUpdate, Rejected
from fjord.training.evaluate import ExampleScores

Reply = ClientUpdate | AcceptedUpdate | Rejected
"""What came of an assignment.

An engine that has validated an update itself passes it on as accepted.
"""


class Engine(Protocol):
    """Runs clients; owns the processes, sockets and devices that takes."""

    def clients(self, round_index: int) -> RoundClients:
        """Return who is there in a round, and what each can carry."""

    def train(self, assignments: Iterable[Assignment]) -> Iterator[tuple[Assignment, Reply]]:
        """Train clients; yield each assignment with its reply, in the order of the assignments.

        The assignments can be iterated more than once. They are made when they are asked for, to
        save memory, and are the same whenever that is.
        """

    def evaluate(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model at each width on every example of the test set."""

    def metadata(self) -> Mapping[str, float]:
        """Return what the engine has to say of the last round, such as messages sent and late."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(self, *error: object) -> None:
        """Release everything."""
