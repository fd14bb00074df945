"""One client's training: from its assignment to its update (Algorithm 1, lines 4 to 7)."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.memory import ClientOutOfMemory, free_memory, is_out_of_memory
from fjord.core.seeding import derive_seed
from fjord.core.width import Width
from fjord.data.federated import Batch, FederatedData
from fjord.elastic.client_model import ClientModel
from fjord.elastic.footprint import count_macs
from fjord.elastic.indexing import take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.submodel.shared import TensorSlice
from fjord.training.assignment import Assignment, ClientUpdate, Fallbacks, NoFallbacks, Reduction
from fjord.training.loop import train_step
from fjord.training.objective import Objective
from fjord.training.optim import SlicedOptimizer

MAX_PREPARED_MODELS = 10
"""How many client models are kept for the next client that has the same units."""


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


def sampled_widths(assignment: Assignment, seed: int) -> Iterator[Width]:
    """Yield the width of each step of a client, without end."""
    path = ("client", assignment.round_index, assignment.client_id, "width")
    rng = random.Random(derive_seed(seed, *path))
    while True:
        yield assignment.space.sample(rng)


def batch_sizes(num_examples: int, batch_size: int) -> list[int]:
    """Return the sizes of the batches of one epoch.

    A last example on its own joins the batch before it: BatchNorm cannot train on a single example.

    >>> batch_sizes(10, 4), batch_sizes(9, 4)
    ([4, 4, 2], [4, 5])
    """
    starts = range(0, num_examples, batch_size)
    sizes = [min(batch_size, num_examples - start) for start in starts]
    if len(sizes) > 1 and sizes[-1] == 1 < batch_size:
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


@dataclass
class PreparedModel:
    """A client model that is ready to be trained: kept for the next client with the same units."""

    model: ClientModel
    optimizer: SlicedOptimizer


class StepCounts:
    """Counts the submodels that the steps of one client run."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.steps: Counter[Width] = Counter()
        self.widest_steps: Counter[Width] = Counter()
        self.examples: Counter[Width] = Counter()
        """The examples that passed through each submodel."""

    def add(self, width: Width, widest: Width, batch_size: int) -> None:
        """Count one step at the sampled width."""
        widths = self.objective.widths(width, widest)
        for run in widths:
            self.examples[run] += batch_size
        for run in set(widths):
            self.steps[run] += 1
        self.widest_steps[max(widths)] += 1


class ClientTrainer:
    """Trains one client after another."""

    def __init__(
        self,
        model: ElasticModel,
        data: FederatedData,
        training: LocalTraining,
        seed: int,
        fallbacks: Fallbacks | None = None,
    ) -> None:
        self.model = model
        self.data = data
        self.training = training
        self.seed = seed
        self.fallbacks = fallbacks or NoFallbacks()
        self._prepared: dict[tuple[object, ...], PreparedModel] = {}
        self._macs: dict[tuple[torch.Size, ...], int] = {}

    def __call__(self, assignment: Assignment, reduction: Reduction | None = None) -> ClientUpdate:
        """Train one client, starting over at the next smaller width when it runs out of memory.

        With `reduction` it begins at that ceiling. An error says which client it was.
        """
        try:
            if reduction is not None:
                return self._train_smaller(assignment, reduction.reason, reduction.ceiling)
            update = self._train_if_it_fits(assignment)
            if update is not None:
                return update
            return self._train_smaller(assignment, "out of memory")
        except Exception as error:
            error.add_note(f"client {assignment.client_id}, round {assignment.round_index}")
            raise

    def _train_smaller(
        self, assignment: Assignment, reason: str, limit: Width | None = None
    ) -> ClientUpdate:
        """Train the widest smaller assignment, up to a limit, that fits into memory."""
        last_tried: Width | None = None
        for smaller in self.fallbacks.all_smaller(assignment):
            if limit is not None and smaller.ceiling > limit:
                continue
            update = self._train_if_it_fits(smaller)
            if update is not None:
                return replace(update, reduction=Reduction(smaller.ceiling, reason))
            reason = "out of memory"
            last_tried = smaller.ceiling
        if last_tried is None:
            raise ClientOutOfMemory(
                "out of memory, and no smaller part of what it was sent can be trained"
            )
        raise ClientOutOfMemory(f"out of memory, also at {last_tried}")

    def _train_if_it_fits(self, assignment: Assignment) -> ClientUpdate | None:
        """Train, or return nothing if there is too little memory; then all that can be is freed."""
        try:
            return self._train(assignment)
        except (MemoryError, RuntimeError, OSError) as error:
            if not is_out_of_memory(error):
                raise
        # Only here, after the handler: the error held everything that was computed.
        self._prepared.clear()
        free_memory()
        return None

    def _train(self, assignment: Assignment) -> ClientUpdate:
        client_id = assignment.client_id
        prepared = self._prepare(assignment)
        seed = derive_seed(self.seed, "client", assignment.round_index, client_id)
        with torch.random.fork_rng(devices=[]):
            # The default generator alone: torch.manual_seed records the stack for GPUs each time.
            torch.default_generator.manual_seed(derive_seed(self.seed, "examples", client_id))
            inputs, targets = self.data.examples(client_id)
            if not len(inputs) == len(targets) > 0:
                raise UserError(
                    f"client {client_id} has {len(inputs)} inputs and {len(targets)} targets; "
                    "there must be as many, and at least one"
                )
            torch.default_generator.manual_seed(derive_seed(seed, "noise"))
            return self._train_on(assignment, prepared, (inputs, targets), seed)

    def _train_on(
        self, assignment: Assignment, prepared: PreparedModel, examples: Batch, seed: int
    ) -> ClientUpdate:
        model = prepared.model
        objective = self.training.objective
        widest = assignment.space.largest
        correction = self._gradient_correction(assignment)
        counts = StepCounts(objective)
        total_loss = torch.zeros(())
        batch = examples
        widths = sampled_widths(assignment, self.seed)
        for batch, width in zip(self._batches(*examples, seed), widths, strict=False):
            step_widths = (width, widest)
            loss = train_step(model, prepared.optimizer, objective, batch, step_widths, correction)
            total_loss = total_loss + loss
            counts.add(width, widest, len(batch[1]))
        macs = 0
        for width, num_examples in counts.examples.items():
            macs += 3 * num_examples * self._macs_at(model, width, batch[0])
        return ClientUpdate(
            client_id=assignment.client_id,
            tensors=_contiguous_copies(model.state_dict()),
            num_examples=len(examples[0]),
            loss=float(total_loss) / counts.widest_steps.total(),
            steps=dict(counts.steps),
            widest_steps=dict(counts.widest_steps),
            macs=macs,
        )

    def _batches(self, inputs: Tensor, targets: Tensor, seed: int) -> Iterator[Batch]:
        remaining = self.training.max_steps
        sizes = batch_sizes(len(inputs), self.training.batch_size)
        for epoch in range(self.training.epochs):
            shuffle = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
            augment = torch.Generator().manual_seed(derive_seed(seed, "augment", epoch))
            order = torch.randperm(len(inputs), generator=shuffle)
            # Batch by batch: all examples in their new order would take their memory once more.
            for rows in islice(order.split(sizes), remaining):
                yield self.data.prepare(inputs[rows], augment), targets[rows]
            if remaining is not None:
                remaining = max(0, remaining - len(sizes))

    def _prepare(self, assignment: Assignment) -> PreparedModel:
        """Return a client model with the assignment's weights in it."""
        key = _units_key(assignment)
        prepared = self._prepared.pop(key, None)
        if prepared is None:
            prepared = self._build_model(assignment)
        else:
            prepared.model.load_state_dict(assignment.tensors)
            prepared.optimizer.reset_state()
        prepared.optimizer.full.param_groups[0]["lr"] = assignment.lr
        self._prepared[key] = prepared
        if len(self._prepared) > MAX_PREPARED_MODELS:
            oldest = next(iter(self._prepared))
            del self._prepared[oldest]
        return prepared

    def _build_model(self, assignment: Assignment) -> PreparedModel:
        tensors = {key: _fast_layout(tensor) for key, tensor in assignment.tensors.items()}
        model = ClientModel(self.model, assignment.units, assignment.space, tensors)
        model.train()
        make_optimizer = partial(
            torch.optim.SGD,
            lr=assignment.lr,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )
        return PreparedModel(model, SlicedOptimizer(model, make_optimizer))

    def _gradient_correction(self, assignment: Assignment) -> "GradientCorrection | None":
        if self.training.prox or assignment.correction:
            return GradientCorrection(assignment, self.training.prox)
        return None

    def _macs_at(self, model: ClientModel, width: Width, inputs: Tensor) -> int:
        net = model.shared_submodel(width).net
        # Shapes alone: to remember a network would keep its weights in memory.
        shapes = (inputs.shape[1:], *(parameter.shape for parameter in net.parameters()))
        if shapes not in self._macs:
            self._macs[shapes] = count_macs(net, (inputs[:1],))
        return self._macs[shapes]


def _units_key(assignment: Assignment) -> tuple[object, ...]:
    units = [tuple(selected.tolist()) for selected in assignment.units.values()]
    return (assignment.space, *units)


def _fast_layout(tensor: Tensor) -> Tensor:
    """Return a copy in the layout that is fastest on a CPU: channels last for convolutions."""
    if tensor.dim() == 4:
        return tensor.clone(memory_format=torch.channels_last)
    return tensor.clone(memory_format=torch.contiguous_format)


def _contiguous_copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    copies = {}
    for key, tensor in tensors.items():
        copies[key] = tensor.clone(memory_format=torch.contiguous_format)
    return copies


@dataclass(frozen=True)
class GradientCorrection:
    """Changes gradients: FedProx adds mu (w - w sent), SCAFFOLD adds c - c_i."""

    assignment: Assignment
    prox: float

    def __call__(self, part: TensorSlice) -> None:
        """Correct the gradient of one tensor."""
        grad = part.tensor.grad
        assert grad is not None
        if self.prox:
            sent = take_slice(self.assignment.tensors[part.key], part.indices)
            grad.add_(part.tensor.detach() - sent, alpha=self.prox)
        if part.key in self.assignment.correction:
            grad.add_(take_slice(self.assignment.correction[part.key], part.indices))
