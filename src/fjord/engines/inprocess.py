"""The default engine: clients train on this machine, one after the other or in worker processes."""

from collections import deque
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
        sent: deque[Task] = deque()

        def sending() -> Iterator[Packed]:
            for task in tasks:
                sent.append(task)
                yield Packed(task)

        for reply in self.pool.map("train", sending()):
            yield sent.popleft(), reply.record

    def _train(self, job: "Packed") -> "Packed":
        return Packed(self.trainer(job.record))

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


class Packed:
    """A task or an update that is pickled with its tensors as one block of bytes each time: pipes carry that fast."""

    def __init__(self, record: Any) -> None:
        self.record = record

    def __getstate__(self) -> Any:
        """Make all tensors of the record bytes."""
        blocks = {
            f.name: safetensors.torch.save({k: t.detach().contiguous() for k, t in value.items()})
            for f in fields(self.record)
            if _of_tensors(value := getattr(self.record, f.name))
        }
        return replace(self.record, **dict.fromkeys(blocks, None)), blocks

    def __setstate__(self, state: Any) -> None:
        """Make them tensors again."""
        record, blocks = state
        self.record = replace(record, **{name: safetensors.torch.load(block) for name, block in blocks.items()})


def _of_tensors(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, Tensor) for v in value.values())
