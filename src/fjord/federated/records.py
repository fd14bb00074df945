"""What a round came to: who trained, what it cost, who was dropped and why, and the scores."""

from dataclasses import dataclass, field
from fractions import Fraction

import torch

from fjord.core.width import Width
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.federated.validation import AcceptedUpdate
from fjord.training.assignment import Assignment, Rejected, total_bytes
from fjord.training.evaluate import ExampleScores, Score


@dataclass
class TierRecord:
    """What the clients of one ceiling did in a round."""

    clients: int = 0
    examples: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    macs: int = 0


@dataclass
class RoundRecord:
    """What one round came to."""

    round_index: int
    target: Width
    lr: float
    loss: float = float("nan")
    """The mean training loss over all examples."""
    examples: int = 0
    tiers: dict[Width, TierRecord] = field(default_factory=dict)
    """By the ceiling up to which clients trained."""
    shells: dict[Width, int] = field(default_factory=dict)
    """How many clients trained the units between each width and the one below."""
    dropped: dict[int, str] = field(default_factory=dict)
    """The clients whose update was not used, and why."""
    reduced: dict[int, str] = field(default_factory=dict)
    """The clients that trained a smaller submodel than they were sent, and why."""
    seconds: float = 0.0
    scores: dict[Width, Score] = field(default_factory=dict)
    example_scores: dict[Width, ExampleScores] = field(default_factory=dict, repr=False)
    simulated_seconds: float | None = None
    """How long the round lasts on the simulated clock, if there is one."""
    engine: dict[str, float] = field(default_factory=dict)
    """What the engine says of the round: over a network, the messages sent, answered and late."""

    def tier(self, ceiling: Width) -> TierRecord:
        """Return the record of a tier."""
        return self.tiers.setdefault(ceiling, TierRecord())

    def count_rejected(self, sent: Assignment, rejected: Rejected) -> None:
        """Count a client whose update is not used."""
        self.tier(sent.ceiling).bytes_down += sent.num_bytes
        self.dropped[sent.client_id] = rejected.reason

    def count_accepted(self, accepted: AcceptedUpdate) -> None:
        """Count a client whose update is merged; `loss` is a sum until `finish_loss`."""
        update = accepted.update
        tier = self.tier(accepted.trained.ceiling)
        tier.clients += 1
        tier.examples += update.num_examples
        tier.bytes_down += accepted.sent.num_bytes
        tier.bytes_up += total_bytes(update.tensors)
        tier.macs += update.macs
        if self.examples == 0:
            self.loss = 0.0
        self.loss += update.loss * update.num_examples
        self.examples += update.num_examples

    def finish_loss(self) -> None:
        """Make the sum of losses a mean."""
        if self.examples:
            self.loss /= self.examples


class ShellCounter:
    """Counts clients for each shell (the units between two widths) of which they trained a unit."""

    def __init__(self, plan: WidthPlan, widths: list[Width]) -> None:
        self.plan = plan
        self.widths = widths

    def count(self, accepted: AcceptedUpdate, shells: dict[Width, int]) -> None:
        """Add one client."""
        widest_run = max(accepted.update.widest_steps)
        inner = Fraction(0)
        for width in self.widths:
            trained = widest_run > inner and self._has_unit(accepted.trained.units, inner, width)
            shells[width] = shells.get(width, 0) + trained
            inner = width

    def _has_unit(self, units: UnitSelection, inner: Fraction, width: Width) -> bool:
        """Say whether some unit lies between two widths."""
        for family in self.plan.families:
            selected = units[family.name]
            first = family.unit_count(inner) if inner else 0
            place = int(torch.searchsorted(selected, first))
            if place < len(selected) and int(selected[place]) < family.unit_count(width):
                return True
        return False
