"""The default engine: clients train on this machine, one after the other or in worker processes."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Self

import safetensors.torch
import torch
from torch import Tensor

from fjord.data.federated import TestSet
from fjord.elastic.model import ElasticModel
from fjord.engines.pool import Pool
from fjord.evaluate import Tested, examine
from fjord.local import Task, Trainer, Update
from fjord.width import Width

BATCH = 256
"""Examples per forward pass in a test: fixed, as sums depend on it."""


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
                yield task, self.trainer(task)
            return
        sent: dict[int, Task] = {}

        def packed() -> Iterator[Any]:
            for index, task in enumerate(tasks):
                sent[index] = task
                yield pack(task)

        for index, reply in enumerate(self.pool.map("train", packed())):
            yield sent.pop(index), unpack(reply)

    def _train(self, packed: Any) -> Any:
        return pack(self.trainer(unpack(packed)))

    def test(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, Tested]:
        """Score the model at each width; each worker takes every n-th batch."""
        widths = list(widths)
        if self.pool is None:
            return {w: Tested.joined(parts) for w, parts in examine(model, self.test_set, widths, BATCH).items()}
        state = safetensors.torch.save({k: t.contiguous() for k, t in model.state_dict().items()})
        shares = list(self.pool.map("test", [(state, widths, i) for i in range(self.workers)]))
        found: dict[Width, Tested] = {}
        for width in widths:
            parts = [share[width] for share in shares]
            longest = max(map(len, parts))
            found[width] = Tested.joined([p[i] for i in range(longest) for p in parts if i < len(p)])
        return found

    def _test(self, job: tuple[bytes, list[Width], int]) -> dict[Width, list[Tested]]:
        state, widths, share = job
        self.trainer.model.load_state_dict(safetensors.torch.load(state))
        return examine(self.trainer.model, self.test_set, widths, BATCH, share, self.workers)


def pack(record: Any) -> Any:
    """Make the tensors of a task or an update bytes: one block each, which pipes carry fast."""
    blocks = {
        f.name: safetensors.torch.save({k: t.detach().contiguous() for k, t in value.items()})
        for f in fields(record)
        if _of_tensors(value := getattr(record, f.name))
    }
    return replace(record, **dict.fromkeys(blocks, None)), blocks


def unpack(packed: Any) -> Any:
    """Return the task or update again."""
    record, blocks = packed
    return replace(record, **{name: safetensors.torch.load(block) for name, block in blocks.items()})


def _of_tensors(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, Tensor) for v in value.values())
