"""The default engine: clients train on this machine, one after the other or in worker processes."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain, zip_longest
from typing import Any, Self

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.memory import ClientOutOfMemory
from fjord.core.width import Width
from fjord.elastic.client_model import take_tensors
from fjord.elastic.model import ElasticModel
from fjord.engines.worker_pool import Handlers, WorkerPool
from fjord.federated.engine import Reply
from fjord.federated.population import RoundClients
from fjord.federated.rounds import Federation
from fjord.training.assignment import Assignment, ClientUpdate, Rejected, total_bytes
from fjord.training.evaluate import ExampleScores, score_examples
from fjord.training.local import ClientTrainer

TEST_BATCH_SIZE = 64
"""Examples in a forward pass: what stays in a core's cache. Fixed, as sums depend on it."""
LARGE_MODEL = 1 << 24
"""From this size in bytes on, few updates wait for their turn: memory counts more than waiting."""


class InProcessEngine:
    """Trains clients in this process (one worker), or in several of one thread each.

    With one thread each, sums are the same however many workers there are.
    """

    def __init__(
        self, federation: Federation, *, workers: int = 1, trainer: ClientTrainer | None = None
    ) -> None:
        if workers < 1:
            raise UserError("must be at least 1", field="workers", value=workers)
        self.model = federation.model
        self.slice_index = federation.slice_index
        self.population = federation.population
        self.test_set = federation.data.test
        self.trainer = trainer or federation.trainer()
        self.workers = workers
        self.pool: WorkerPool | None = None
        self._threads_before = torch.get_num_threads()

    def __enter__(self) -> Self:
        """Start the workers."""
        torch.set_num_threads(1)
        if self.workers > 1:
            self.model.share_memory()  # workers take their submodels from it themselves
            handlers: Handlers = {"train": self._train_in_worker, "test": self._test_in_worker}
            self.pool = WorkerPool(handlers, self.workers)
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        if self.pool:
            self.pool.close()
        self.pool = None
        torch.set_num_threads(self._threads_before)

    def clients(self, round_index: int) -> RoundClients:
        """Return the clients that are simulated to be there."""
        return self.population.clients_in(round_index)

    def metadata(self) -> Mapping[str, float]:
        """Return nothing: there are no messages to count."""
        return {}

    def train(self, assignments: Iterable[Assignment]) -> Iterator[tuple[Assignment, Reply]]:
        """Train clients, in the order of the assignments."""
        if self.pool is None:
            for assignment in assignments:
                yield assignment, self._train_client(assignment)
        else:
            yield from self._train_in_pool(self.pool, assignments)

    def _train_in_pool(
        self, pool: WorkerPool, assignments: Iterable[Assignment]
    ) -> Iterator[tuple[Assignment, Reply]]:
        waiting: deque[Assignment] = deque()

        def packed_assignments() -> Iterator[PackedRecord]:
            for assignment in assignments:
                waiting.append(assignment)
                yield PackedRecord(replace(assignment, tensors={}))

        is_small = total_bytes(self.model.tensors) < LARGE_MODEL
        ahead = None if is_small else self.workers + 1
        for packed in pool.map("train", packed_assignments(), ahead):
            yield waiting.popleft(), packed.record
            del packed  # or it would stay in memory while the next one comes

    def _train_in_worker(self, packed: "PackedRecord") -> "PackedRecord":
        assignment: Assignment = packed.record
        index = self.slice_index(assignment.units, assignment.space.widths)
        tensors = take_tensors(self.model, index)
        return PackedRecord(self._train_client(replace(assignment, tensors=tensors)))

    def _train_client(self, assignment: Assignment) -> ClientUpdate | Rejected:
        try:
            return self.trainer(assignment)
        except ClientOutOfMemory as error:
            return Rejected(str(error))

    def evaluate(self, model: ElasticModel, widths: Iterable[Width]) -> dict[Width, ExampleScores]:
        """Score the model at each width; of n workers, each takes every n-th batch."""
        widths = list(widths)
        if self.pool is None:
            scores = score_examples(model, self.test_set, widths, TEST_BATCH_SIZE)
            return {width: ExampleScores.join(parts) for width, parts in scores.items()}
        if model is not self.model:
            raise UserError(
                "model: workers share the memory of the federation's own model and test no other"
            )
        shares = list(self.pool.map("test", [(widths, worker) for worker in range(self.workers)]))
        joined = {}
        for width in widths:
            in_turn = zip_longest(*(share[width] for share in shares))
            parts = [part for part in chain.from_iterable(in_turn) if part is not None]
            joined[width] = ExampleScores.join(parts)
        return joined

    def _test_in_worker(self, job: tuple[list[Width], int]) -> dict[Width, list[ExampleScores]]:
        widths, worker = job
        return score_examples(
            self.model, self.test_set, widths, TEST_BATCH_SIZE, first=worker, step=self.workers
        )


class PackedRecord:
    """A record that is pickled with its tensors as arrays, which pipes carry without a copy."""

    def __init__(self, record: Any) -> None:
        self.record = record

    def __getstate__(self) -> Any:
        """Make all tensors of the record arrays of bytes."""
        blocks = {}
        for field in fields(self.record):
            value = getattr(self.record, field.name)
            if _holds_tensors(value):
                blocks[field.name] = _as_bytes(value)
        return replace(self.record, **dict.fromkeys(blocks, None)), blocks

    def __setstate__(self, state: Any) -> None:
        """Make them tensors again."""
        record, blocks = state
        values = {name: _as_tensors(block) for name, block in blocks.items()}
        self.record = replace(record, **values)


ByteBlock = dict[str, tuple[torch.dtype, torch.Size, Any]]
"""The type, shape and memory of some tensors."""


def _holds_tensors(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(each, Tensor) for each in value.values())


def _as_bytes(tensors: dict[str, Tensor]) -> ByteBlock:
    block = {}
    for key, tensor in tensors.items():
        memory = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        block[key] = (tensor.dtype, tensor.shape, memory)
    return block


def _as_tensors(block: ByteBlock) -> dict[str, Tensor]:
    tensors = {}
    for key, (dtype, shape, memory) in block.items():
        tensors[key] = torch.from_numpy(memory).view(dtype).reshape(shape)
    return tensors
