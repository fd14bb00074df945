"""One client's training: from the slice it was sent to the slice it sends back (Algorithm 1, lines 4 to 7)."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Protocol

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.memory import ClientOutOfMemory, free_memory, is_out_of_memory
from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import Batch, FederatedData
from fjord.elastic.client_model import ClientModel
from fjord.elastic.footprint import count_macs
from fjord.elastic.indexing import take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.elastic.submodel.shared import TensorSlice
from fjord.training.loop import train_step
from fjord.training.objective import LogitsAt, Objective
from fjord.training.optim import SlicedOptimizer


@dataclass(frozen=True)
class Assignment:
    """What a client is sent: its slice of the model, and how to train it."""

    client_id: int
    round_index: int
    lr: float
    held: UnitSelection
    """The units of each family it holds."""
    space: WidthSpace
    """The widths it samples from; it holds all of them."""
    tensors: dict[str, Tensor]
    """They may be views of the server's model, and are only read."""
    correction: dict[str, Tensor] = field(default_factory=dict)
    """Added to every gradient (SCAFFOLD)."""

    @property
    def bytes(self) -> int:
        """What is sent to the client."""
        return total_bytes(self.tensors) + total_bytes(self.correction)


@dataclass(frozen=True)
class Reduction:
    """That a client trained a smaller part than it was sent: up to which ceiling, and why."""

    ceiling: Width
    why: str


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back."""

    client_id: int
    tensors: dict[str, Tensor]
    num_examples: int
    loss: float
    steps: dict[Width, int]
    """In how many steps each submodel was run."""
    reach: dict[Width, int]
    """In how many steps each submodel was the widest one run."""
    macs: int
    """Multiply-accumulates of all forward and backward passes (a backward pass counts as two forward ones)."""
    reduced: Reduction | None = None
    """None: it trained all it was sent."""


class Fallbacks(Protocol):
    """The smaller tasks that lie within a task."""

    def smaller(self, task: Assignment, ceiling: Width) -> Assignment | None:
        """Return the one of a ceiling, if there is one."""

    def below(self, task: Assignment) -> Iterable[tuple[Width, Assignment]]:
        """Return all of them with their ceilings, the widest first."""


class NoFallbacks:
    """No parts: a client trains what it is sent, or nothing."""

    def smaller(self, task: Assignment, ceiling: Width) -> Assignment | None:
        """Return nothing."""
        return None

    def below(self, task: Assignment) -> Iterable[tuple[Width, Assignment]]:
        """Return nothing."""
        return ()


def total_bytes(tensors: dict[str, Tensor]) -> int:
    """Return the bytes of some tensors."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains."""

    objective: Objective
    batch_size: int
    epochs: int = 1
    max_steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    """FedProx's mu: a pull back to the weights that were sent."""


def sampled_widths(task: Assignment, seed: int) -> Iterator[Width]:
    """Yield the width of each step of a client, for ever."""
    rng = random.Random(derive_seed(seed, "client", task.round_index, task.client_id, "width"))
    while True:
        yield task.space.sample(rng)


def batch_sizes(num_examples: int, batch_size: int) -> list[int]:
    """Return the sizes of the batches of one epoch.

    >>> batch_sizes(10, 4), batch_sizes(9, 4)
    ([4, 4, 2], [4, 5])
    """
    sizes = [min(batch_size, num_examples - start) for start in range(0, num_examples, batch_size)]
    if len(sizes) > 1 and sizes[-1] == 1 < batch_size:  # BatchNorm cannot train on a single example
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


@dataclass
class _Bench:
    """A slice set up to be trained: kept for the next client that holds the same units."""

    model: ClientModel
    optimizer: SlicedOptimizer


class ClientTrainer:
    """Trains one client after another."""

    def __init__(
        self,
        model: ElasticModel,
        data: FederatedData,
        how: LocalTraining,
        seed: int,
        parts: Fallbacks | None = None,
    ) -> None:
        self.model, self.data, self.how, self.seed = model, data, how, seed
        self.parts = parts or NoFallbacks()
        self._benches: dict[tuple[object, ...], _Bench] = {}
        self._macs: dict[tuple[torch.Size, ...], int] = {}

    def __call__(self, task: Assignment, reduced: Reduction | None = None) -> ClientUpdate:
        """Train one client, from the start at the next smaller width each time it runs out of memory.

        With `reduced` it begins at that ceiling. An error says which client it was.
        """
        try:
            return self._fitting(task, reduced)
        except Exception as error:
            error.add_note(f"client {task.client_id}, round {task.round_index}")
            raise

    def _fitting(self, task: Assignment, reduced: Reduction | None) -> ClientUpdate:
        why = reduced.why if reduced else ""
        first: list[tuple[Width | None, Assignment]] = [] if reduced else [(None, task)]
        tried: Width | None = None
        for ceiling, part in chain(first, self.parts.below(task)):
            if reduced and ceiling is not None and ceiling > reduced.ceiling:
                continue
            try:
                update = self._update(part)
                return (
                    update if ceiling is None else replace(update, reduced=Reduction(ceiling, why))
                )
            except (MemoryError, RuntimeError, OSError) as error:
                if not is_out_of_memory(error):
                    raise
            # Only here: the error held all that was computed.
            why, tried = "out of memory", ceiling
            self._benches.clear()
            free_memory()
        nothing = "no smaller part of what it was sent can be trained"
        raise ClientOutOfMemory(
            f"out of memory, {f'also at {tried}' if tried else f'and {nothing}'}"
        )

    def _update(self, task: Assignment) -> ClientUpdate:
        bench = self._bench(task)
        seed = derive_seed(self.seed, "client", task.round_index, task.client_id)
        with torch.random.fork_rng(devices=[]):
            # On the default generator alone: torch.manual_seed writes down the stack for graphics cards, each time.
            torch.default_generator.manual_seed(derive_seed(self.seed, "examples", task.client_id))
            inputs, targets = self.data.examples(task.client_id)
            if not len(inputs) == len(targets) > 0:
                sizes = f"{len(inputs)} inputs and {len(targets)} targets"
                raise UserError(
                    f"client {task.client_id} has {sizes}; there must be as many, and at least one"
                )
            torch.default_generator.manual_seed(derive_seed(seed, "noise"))
            return self._train(task, bench, (inputs, targets), seed)

    def _train(self, task: Assignment, bench: _Bench, examples: Batch, seed: int) -> ClientUpdate:
        sampled, correct = sampled_widths(task, self.seed), self._correction(task)
        steps: Counter[Width] = Counter()
        reach: Counter[Width] = Counter()
        passed: Counter[Width] = Counter()
        ran: list[Width] = []

        def watched(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
            def logits(width: Width) -> Tensor:
                ran.append(width)
                return logits_at(width)

            return self.how.objective(logits, target, width, widest)

        loss = torch.zeros(())
        batch = examples
        for batch in self._batches(*examples, seed):
            widths = next(sampled), task.space.largest
            loss = loss + train_step(bench.model, bench.optimizer, watched, batch, widths, correct)
            for width in ran:
                passed[width] += len(batch[1])
            for width in set(ran) if len(ran) > 1 else ran:
                steps[width] += 1
            reach[max(ran)] += 1
            ran.clear()
        macs = sum(
            3 * count * self._macs_at(bench, width, batch[0]) for width, count in passed.items()
        )
        tensors = {
            k: t.clone(memory_format=torch.contiguous_format)
            for k, t in bench.model.state_dict().items()
        }
        mean = float(loss) / reach.total()
        return ClientUpdate(
            task.client_id, tensors, len(examples[0]), mean, dict(steps), dict(reach), macs
        )

    def _batches(self, inputs: Tensor, targets: Tensor, seed: int) -> Iterator[Batch]:
        left = self.how.max_steps
        for epoch in range(self.how.epochs):
            shuffle = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
            augment = torch.Generator().manual_seed(derive_seed(seed, "augment", epoch))
            order = torch.randperm(len(inputs), generator=shuffle)
            sizes = batch_sizes(len(inputs), self.how.batch_size)
            # Batch by batch: the examples in their new order would take as much memory as the examples again.
            each = islice(order.split(sizes), left)
            yield from ((self.data.prepare(inputs[rows], augment), targets[rows]) for rows in each)
            left = None if left is None else max(0, left - len(sizes))

    def _bench(self, task: Assignment) -> _Bench:
        """Return a slice with the task's weights in it."""
        key = (task.space, *(tuple(units.tolist()) for units in task.held.values()))
        bench = self._benches.pop(key, None)
        if bench is None:
            tensors = {k: _laid_out(t) for k, t in task.tensors.items()}
            model = ClientModel(self.model, task.held, task.space, tensors).train()
            how = partial(
                torch.optim.SGD,
                lr=task.lr,
                momentum=self.how.momentum,
                weight_decay=self.how.weight_decay,
            )
            bench = _Bench(model, SlicedOptimizer(model, how))
        else:
            bench.model.load_state_dict(task.tensors)
            bench.optimizer.reset_state()
        bench.optimizer.full.param_groups[0]["lr"] = task.lr
        self._benches[key] = bench
        if len(self._benches) > 10:
            del self._benches[next(iter(self._benches))]
        return bench

    def _correction(self, task: Assignment) -> "_Correction | None":
        return _Correction(task, self.how.prox) if self.how.prox or task.correction else None

    def _macs_at(self, bench: _Bench, width: Width, inputs: Tensor) -> int:
        net = bench.model.shared_submodel(width).net
        shapes = inputs.shape[1:], *(p.shape for p in net.parameters())
        if (
            shapes not in self._macs
        ):  # shapes alone: to remember a network would keep its weights in memory
            self._macs[shapes] = count_macs(net, (inputs[:1],))
        return self._macs[shapes]


def _laid_out(tensor: Tensor) -> Tensor:
    """Return a copy in the layout that is fastest on a CPU: channels last for convolutions."""
    return tensor.clone(
        memory_format=torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    )


@dataclass(frozen=True)
class _Correction:
    """Changes gradients: FedProx adds mu (w - w sent), SCAFFOLD adds c - c_i."""

    task: Assignment
    prox: float

    def __call__(self, part: TensorSlice) -> None:
        """Correct the gradient of one part."""
        grad = part.tensor.grad
        assert grad is not None
        if self.prox:
            sent = take_slice(self.task.tensors[part.key], part.indices)
            grad.add_(part.tensor.detach() - sent, alpha=self.prox)
        if part.key in self.task.correction:
            grad.add_(take_slice(self.task.correction[part.key], part.indices))
