"""A proof that cannot fail proves nothing: wrong plans must be noticed."""

import random
from dataclasses import replace
from fractions import Fraction

import oracles
import pytest
import torch
from motifs import MOTIFS

from fjord.core.width import uniform_widths
from fjord.elastic.families import build_plan
from fjord.elastic.plan import UnitFamily, WidthPlan
from fjord.elastic.proof import PlanProof
from fjord.elastic.submodel.blueprint import Blueprint
from fjord.elastic.trace.tracer import GraphTracer

WIDTH = Fraction(3, 5)


def mutants(plan: WidthPlan):
    """Forget, shift or re-block one member of one family."""
    for family in plan.families:
        for axis, rows in family.members.items():
            yield "forget", family, {a: m for a, m in family.members.items() if a != axis}
            yield "shift", family, {**family.members, axis: rows.roll(1, 0)}
            blocks = rows.reshape(-1).sort().values.reshape(rows.shape)
            if not torch.equal(blocks, rows):
                yield "re-block", family, {**family.members, axis: blocks}


@pytest.mark.parametrize(
    "name",
    ["residual add", "concatenation", "depthwise, squeeze-excite", "gru", "attention", "u-net"],
)
def test_every_mutated_plan_is_noticed(name):
    motif = MOTIFS[name]
    model = oracles.randomise(motif.build())
    trace = GraphTracer(model, motif.inputs()).trace()
    plan = build_plan(model, trace, uniform_widths(5).widths)
    good = PlanProof(model, motif.inputs(), trace, plan)
    assert good.permutation_error() < good.tolerance
    assert good.cut_error(Blueprint(model), WIDTH) < good.tolerance
    found = list(mutants(plan))
    for kind, family, members in random.Random(0).sample(found, min(20, len(found))):
        wrong = UnitFamily(family.name, members, family.layers, family.multiple)
        bad = replace(plan, families=tuple(wrong if f is family else f for f in plan.families))
        assert noticed(PlanProof(model, motif.inputs(), trace, bad)), (kind, family.name)


def noticed(proof: PlanProof) -> bool:
    try:
        return (
            proof.permutation_error() > proof.tolerance
            or proof.cut_error(Blueprint(proof.model), WIDTH) > proof.tolerance
        )
    except (RuntimeError, ValueError, IndexError, StopIteration, KeyError):
        return True
