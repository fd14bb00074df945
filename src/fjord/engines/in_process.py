"""The default engine: clients train on this machine, one after the other or in worker processes."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.memory import ClientOutOfMemory
from fjord.core.width import Width
from fjord.data.federated import TestSet
from fjord.elastic.client_model import SliceIndex, take_tensors
from fjord.elastic.model import ElasticModel
from fjord.engines.worker_pool import WorkerPool
from fjord.training.evaluate import ExampleScores, score_examples
from fjord.training.local import Assignment, ClientTrainer, ClientUpdate, total_bytes

BATCH = 64
"""Examples per forward pass in a test: what stays in a core's cache. Fixed, as sums depend on it."""
LARGE = 1 << 24
"""From this size of a model on, in bytes, few updates wait for their turn: memory counts for more than waiting."""


class InProcessEngine:
    """Trains clients in this process (one worker) or in several, each with one thread: sums are then the same."""

    def __init__(self, trainer: ClientTrainer, test: TestSet, workers: int = 1) -> None:
        if workers < 1:
            raise UserError(f"workers={workers} must be at least 1")
        self.trainer, self.test_set, self.workers = trainer, test, workers
        self.threads = torch.get_num_threads()
        self.pool: WorkerPool | None = None

    def __enter__(self) -> Self:
        """Start the workers."""
        torch.set_num_threads(1)
        if self.workers > 1:
            self.trainer.model.share_memory()  # workers take their slices from it themselves
            self.places = SliceIndex(self.trainer.model)
            self.pool = WorkerPool({"train": self._train, "test": self._test}, self.workers)
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        if self.pool:
            self.pool.close()
        self.pool = None
        torch.set_num_threads(self.threads)

    def train(self, tasks: Iterable[Assignment]) -> Iterator[tuple[Assignment, ClientUpdate | str]]:
        """Train clients, in the order of the tasks."""
        if self.pool is None:
            for task in tasks:
                yield task, self._trained(task)
            return
        sent: deque[Assignment] = deque()

        def sending() -> Iterator[PackedRecord]:
            for task in tasks:
                sent.append(task)
                yield PackedRecord(replace(task, tensors={}))

        ahead = None if total_bytes(self.trainer.model.tensors) < LARGE else self.workers + 1
        for reply in self.pool.map("train", sending(), ahead):
            yield sent.popleft(), reply.record if isinstance(reply, PackedRecord) else reply
            del reply  # or it would stay in memory while the next one comes

    def _train(self, job: "PackedRecord") -> "PackedRecord | str":
        task: Assignment = job.record
        tensors = take_tensors(self.trainer.model, self.places(task.held, task.space.widths))
        reply = self._trained(replace(task, tensors=tensors))
        return reply if isinstance(reply, str) else PackedRecord(reply)

    def _trained(self, task: Assignment) -> ClientUpdate | str:
        try:
            return self.trainer(task)
        except ClientOutOfMemory as error:
            return str(error)

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model at each width; each worker takes every n-th batch."""
        widths = list(widths)
        if self.pool is None:
            return {
                w: ExampleScores.joined(parts)
                for w, parts in score_examples(model, self.test_set, widths, BATCH).items()
            }
        if model is not self.trainer.model:
            raise UserError(
                "model: workers share the memory of the trainer's own model and can test no other"
            )
        shares = list(self.pool.map("test", [(widths, i) for i in range(self.workers)]))
        found: dict[Width, ExampleScores] = {}
        for width in widths:
            parts = [share[width] for share in shares]
            longest = max(map(len, parts))
            found[width] = ExampleScores.joined(
                [p[i] for i in range(longest) for p in parts if i < len(p)]
            )
        return found

    def _test(self, job: tuple[list[Width], int]) -> dict[Width, list[ExampleScores]]:
        widths, share = job
        return score_examples(self.trainer.model, self.test_set, widths, BATCH, share, self.workers)


class PackedRecord:
    """A task or an update that is pickled with its tensors as arrays: pipes carry those as they are."""

    def __init__(self, record: Any) -> None:
        self.record = record

    def __getstate__(self) -> Any:
        """Make all tensors of the record arrays of bytes."""
        found = {f.name: getattr(self.record, f.name) for f in fields(self.record)}
        blocks = {name: _as_bytes(value) for name, value in found.items() if _of_tensors(value)}
        return replace(self.record, **dict.fromkeys(blocks, None)), blocks

    def __setstate__(self, state: Any) -> None:
        """Make them tensors again."""
        record, blocks = state
        values = {
            name: {k: _as_tensor(*v) for k, v in block.items()} for name, block in blocks.items()
        }
        self.record = replace(record, **values)


def _of_tensors(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(v, Tensor) for v in value.values())
    )


def _as_bytes(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size, Any]]:
    flat = {
        key: t.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        for key, t in tensors.items()
    }
    return {key: (t.dtype, t.shape, flat[key]) for key, t in tensors.items()}


def _as_tensor(dtype: torch.dtype, shape: torch.Size, memory: Any) -> Tensor:
    return torch.from_numpy(memory).view(dtype).reshape(shape)
