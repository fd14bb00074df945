"""The simulated clock in a round: when each client is back, and who is late, where possible before it trains."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice, repeat

import torch
from torch import Tensor

from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.data.federated import CountedData, FederatedData
from fjord.devices.speed_table import SpeedTable
from fjord.devices.speeds import ClientWorkload
from fjord.elastic.client_model import units_below
from fjord.elastic.footprint import count_macs
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.training.local import (
    Assignment,
    ClientUpdate,
    LocalTraining,
    batch_sizes,
    sampled_widths,
    total_bytes,
)


class CostModel:
    """Foretells what a client's training comes to: its steps, their widths and sizes are known from the seed."""

    def __init__(
        self, model: ElasticModel, data: FederatedData, how: LocalTraining, seed: int
    ) -> None:
        self.model, self.data, self.how, self.seed = model, data, how, seed
        self.num_examples = cache(self._num_examples)
        self.passes = cache(self._passes)
        self._macs: dict[tuple[Width, tuple[int, ...]], int] = {}

    def __call__(self, task: Assignment) -> tuple[int, int]:
        """Return the steps of a client and their multiply-accumulates."""
        epoch = batch_sizes(self.num_examples(task.client_id), self.how.batch_size)
        sizes = list(
            islice(chain.from_iterable(repeat(epoch, self.how.epochs)), self.how.max_steps)
        )
        passed: Counter[Width] = Counter()
        for count, width in zip(sizes, sampled_widths(task, self.seed), strict=False):
            for ran in self.passes(width, task.space.largest):
                passed[ran] += count
        return len(sizes), sum(
            3 * count * self._macs_at(task, width) for width, count in passed.items()
        )

    def _num_examples(self, client_id: int) -> int:
        if isinstance(self.data, CountedData) and callable(self.data.num_examples):
            return self.data.num_examples(client_id)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(self.seed, "examples", client_id))
            return len(self.data.examples(client_id)[1])

    def _passes(self, width: Width, widest: Width) -> list[Width]:
        """Return the submodels that a step runs: those that the objective asks for, given the smallest one's scores."""
        inputs, targets = self.data.test.batch(0, 2)
        ran: list[Width] = []
        with torch.random.fork_rng(devices=[]):
            logits: Tensor = self.model.cut(self.model.space.widths[0]).eval()(inputs)

            def logits_at(at: Width) -> Tensor:
                ran.append(at)
                return logits

            self.how.objective(logits_at, targets, width, widest)
        return ran

    def _macs_at(self, task: Assignment, width: Width) -> int:
        """Return the multiply-accumulates of one example in a submodel, which depend on how many units it has."""
        kept = units_below(self.model.plan, task.held, width)
        key = width, tuple(map(len, kept.values()))
        if key not in self._macs:
            inputs = self.data.test.batch(0, 1)[0]
            self._macs[key] = count_macs(self.model.cut(width, kept), (inputs,))
        return self._macs[key]


def held_width(plan: WidthPlan, space: WidthSpace, held: UnitSelection) -> Width:
    """Return the smallest width that has as many units of each family as are held."""
    return next(
        w for w in space.widths if all(len(held[f.name]) <= f.unit_count(w) for f in plan.families)
    )


@dataclass
class ClientTimer:
    """Tells how long clients take to train one model."""

    clock: SpeedTable
    forecast: CostModel
    space: WidthSpace
    """P."""

    def seconds(
        self,
        sent: Assignment,
        ceiling: Width,
        trained: Assignment | None = None,
        update: ClientUpdate | None = None,
    ) -> float:
        """Return when a client is back, from what it trained and its update; or from what it would do, without them."""
        steps, macs = (sum(update.reach.values()), update.macs) if update else self.forecast(sent)
        up = total_bytes(update.tensors if update else sent.tensors)
        width = held_width(self.forecast.model.plan, self.space, (trained or sent).held)
        work = ClientWorkload(sent.bytes, up, steps, macs, width)
        return self.clock.client_seconds(
            ceiling,
            work,
            seed=self.forecast.seed,
            round_index=sent.round_index,
            client_id=sent.client_id,
        )


@dataclass
class RoundClock:
    """One round on the clock: it lasts until the last client is back, or until the deadline."""

    timer: ClientTimer
    seconds: float = 0.0
    late: dict[int, str] = field(default_factory=dict)
    """The clients that were not trained, as they would be late."""

    def foresee(self, task: Assignment, ceiling: Width) -> bool:
        """Say whether a client may train: it is known to be late only if there is a deadline."""
        if self.timer.clock.deadline is None:
            return True
        late = self._back(self.timer.seconds(task, ceiling))
        if late:
            self.late[task.client_id] = late
        return late is None

    def back(
        self,
        sent: Assignment,
        ceiling: Width,
        trained: Assignment | None = None,
        update: ClientUpdate | None = None,
    ) -> str | None:
        """Take the time of a client; say if it was too late. Without an update: it sent none that can be used."""
        return self._back(self.timer.seconds(sent, ceiling, trained, update))

    def _back(self, seconds: float) -> str | None:
        deadline = self.timer.clock.deadline
        self.seconds = max(self.seconds, seconds if deadline is None else min(seconds, deadline))
        return self.timer.clock.late_reason(seconds)
