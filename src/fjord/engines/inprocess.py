"""The default engine: clients train on this machine, one after the other or in worker processes."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from fjord.data.federated import TestSet
from fjord.elastic.model import ElasticModel
from fjord.elastic.slice import Places, taken
from fjord.engines.pool import Pool
from fjord.evaluate import Tested, examine
from fjord.local import Task, Trainer, Update, size
from fjord.shortage import OutOfMemory
from fjord.width import Width

BATCH = 64
"""Examples per forward pass in a test: what stays in a core's cache. Fixed, as sums depend on it."""
LARGE = 1 << 24
"""From this size of a model on, in bytes, few updates wait for their turn: memory counts for more than waiting."""


class InProcess:
    """Trains clients in this process (one worker) or in several, each with one thread: sums are then the same."""

    def __init__(self, trainer: Trainer, test: TestSet, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers={workers} must be at least 1")
        self.trainer, self.test_set, self.workers = trainer, test, workers
        self.threads = torch.get_num_threads()
        self.pool: Pool | None = None

    def __enter__(self) -> Self:
        """Start the workers."""
        torch.set_num_threads(1)
        if self.workers > 1:
            self.trainer.model.share_memory()  # workers take their slices from it themselves
            self.places = Places(self.trainer.model)
            self.pool = Pool({"train": self._train, "test": self._test}, self.workers)
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        if self.pool:
            self.pool.close()
        self.pool = None
        torch.set_num_threads(self.threads)

    def train(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Update | str]]:
        """Train clients, in the order of the tasks."""
        if self.pool is None:
            for task in tasks:
                yield task, self._trained(task)
            return
        sent: deque[Task] = deque()

        def sending() -> Iterator[Packed]:
            for task in tasks:
                sent.append(task)
                yield Packed(replace(task, tensors={}))

        ahead = None if size(self.trainer.model.tensors) < LARGE else self.workers + 1
        for reply in self.pool.map("train", sending(), ahead):
            yield sent.popleft(), reply.record if isinstance(reply, Packed) else reply
            del reply  # or it would stay in memory while the next one comes

    def _train(self, job: "Packed") -> "Packed | str":
        task: Task = job.record
        tensors = taken(self.trainer.model, self.places(task.held, task.space.widths))
        reply = self._trained(replace(task, tensors=tensors))
        return reply if isinstance(reply, str) else Packed(reply)

    def _trained(self, task: Task) -> Update | str:
        try:
            return self.trainer(task)
        except OutOfMemory as error:
            return str(error)

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, Tested]:
        """Score the model at each width; each worker takes every n-th batch."""
        widths = list(widths)
        if self.pool is None:
            return {w: Tested.joined(parts) for w, parts in examine(model, self.test_set, widths, BATCH).items()}
        if model is not self.trainer.model:
            raise ValueError("model: workers share the memory of the trainer's own model and can test no other")
        shares = list(self.pool.map("test", [(widths, i) for i in range(self.workers)]))
        found: dict[Width, Tested] = {}
        for width in widths:
            parts = [share[width] for share in shares]
            longest = max(map(len, parts))
            found[width] = Tested.joined([p[i] for i in range(longest) for p in parts if i < len(p)])
        return found

    def _test(self, job: tuple[list[Width], int]) -> dict[Width, list[Tested]]:
        widths, share = job
        return examine(self.trainer.model, self.test_set, widths, BATCH, share, self.workers)


class Packed:
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
        values = {name: {k: _as_tensor(*v) for k, v in block.items()} for name, block in blocks.items()}
        self.record = replace(record, **values)


def _of_tensors(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, Tensor) for v in value.values())


def _as_bytes(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size, Any]]:
    flat = {key: t.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for key, t in tensors.items()}
    return {key: (t.dtype, t.shape, flat[key]) for key, t in tensors.items()}


def _as_tensor(dtype: torch.dtype, shape: torch.Size, memory: Any) -> Tensor:
    return torch.from_numpy(memory).view(dtype).reshape(shape)
