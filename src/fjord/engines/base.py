"""What an engine is."""

from collections.abc import Iterable, Iterator
from typing import Protocol, Self

from fjord.elastic.model import ElasticModel
from fjord.evaluate import Tested
from fjord.local import Task, Update
from fjord.width import Width


class Engine(Protocol):
    """Runs clients; owns the processes, sockets and devices that takes."""

    def train(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Update | str]]:
        """Train clients; yield each task with its update, or what went wrong, in the order of the tasks."""

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, Tested]:
        """Score the model at each width on every example of the test set."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(self, *error: object) -> None:
        """Let go of everything."""
