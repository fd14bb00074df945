"""What an engine is."""

from collections.abc import Iterable, Iterator
from typing import Protocol, Self

from fjord.core.width import Width
from fjord.elastic.model import ElasticModel
from fjord.training.evaluate import ExampleScores
from fjord.training.local import Assignment, ClientUpdate


class Engine(Protocol):
    """Runs clients; owns the processes, sockets and devices that takes."""

    def train(self, tasks: Iterable[Assignment]) -> Iterator[tuple[Assignment, ClientUpdate | str]]:
        """Train clients; yield each task with its update, or what went wrong, in the order of the tasks."""

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model at each width on every example of the test set."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(self, *error: object) -> None:
        """Let go of everything."""
