"""Eq. (1), against its literal version."""

from fractions import Fraction

import fed_oracles as fed
import oracles
import pytest
import torch
from fed_oracles import FIFTHS, Reply
from holders import random_units
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import KINDS, few

import fjord
from fjord.core.width import Width
from fjord.elastic.client_model import SliceIndex, slice_index
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.federated.aggregation import MeanOverAll, NestedMean
from fjord.federated.server_optimizers import ServerUpdate

cohorts = st.lists(
    st.tuples(st.sampled_from(FIFTHS.widths), st.integers(1, 3000)), min_size=1, max_size=6
)


def merged(
    model: ElasticModel, replies: list[tuple[fed.State, dict, float]], take_all: bool = False
) -> fed.State:
    mean = (MeanOverAll if take_all else NestedMean)(model, SliceIndex(model))
    for tensors, where, weight in replies:
        mean.add_tensors(tensors, where, weight)
    ServerUpdate().apply(model, mean)
    return fed.snapshot(model)


def rolled_units(model: ElasticModel, width: Width, start: int) -> UnitSelection:
    return {
        f.name: torch.tensor(
            sorted(
                (start + i) % f.num_units for i in range(oracles.first_units(width, f.num_units))
            )
        )
        for f in model.plan.families
    }


@pytest.mark.parametrize("kind", KINDS)
@few
@given(cohorts, st.integers(0, 10**6))
def test_the_nested_mean_equals_eq1_taken_literally(
    kind: str, cohort: list[tuple[Width, int]], seed: int
) -> None:
    net, model = fed.elastic(kind)
    current = fed.snapshot(model)
    replies = [Reply(c, n, fed.random_state(current, seed + i)) for i, (c, n) in enumerate(cohort)]
    sent = []
    for reply in replies:
        widths = [w for w in FIFTHS.widths if w <= reply.ceiling]
        held = model.plan.leading_units(reply.ceiling)
        mask = fed.holds(net, model, fed.first_units(model, reply.ceiling), widths)
        sent.append(
            (fed.slice_of(reply.full, mask), slice_index(model, held, widths), reply.num_examples)
        )
    expected = fed.eq1_literal(net, model, current, replies, FIFTHS)
    found = merged(model, sent)
    fed.assert_close(found, expected)
    assert all(bool(t.isfinite().all()) for t in found.values())
    widest = max(c for c, _ in cohort)
    inside = fed.holds(
        net, model, fed.first_units(model, widest), [w for w in FIFTHS.widths if w <= widest]
    )
    for key, value in current.items():
        assert torch.equal(found[key][~inside[key]], value[~inside[key]]), (
            f"{key} moved where nobody holds it"
        )


@pytest.mark.parametrize("kind", ["counting", "lstm", "batchnorm"])
@pytest.mark.parametrize("rolling", [False, True], ids=["random", "rolling"])
@settings(max_examples=6, deadline=None)
@given(cohort=cohorts, seed=st.integers(0, 10**6))
def test_any_choice_of_units_is_averaged_element_by_element_over_its_holders(
    kind: str, rolling: bool, cohort: list[tuple[Width, int]], seed: int
) -> None:
    net, model = fed.elastic(kind)
    current = fed.snapshot(model)
    sent, literal = [], []
    for i, (ceiling, count) in enumerate(cohort):
        held = (
            rolled_units(model, ceiling, seed + i)
            if rolling
            else random_units(model, ceiling, seed + i)
        )
        widths = [Width(1)] if rolling else [w for w in FIFTHS.widths if w <= ceiling]
        mask, full = fed.holds(net, model, held, widths), fed.random_state(current, seed + i)
        literal.append((mask, count, full))
        sent.append((fed.slice_of(full, mask), slice_index(model, held, widths), count))
    expected = fed.mean_of_holders(current, literal)
    found = merged(model, sent)
    fed.assert_close(found, expected)
    for key, value in current.items():
        nobody = ~torch.stack([mask[key] for mask, _, _ in literal]).any(0)
        assert torch.equal(found[key][nobody], value[nobody]), f"{key} moved where nobody holds it"


@pytest.mark.parametrize("kind", ["counting", "lstm", "batchnorm"])
@settings(max_examples=6, deadline=None)
@given(cohort=cohorts, seed=st.integers(0, 10**6))
def test_a_mean_over_all_takes_what_a_client_does_not_hold_as_it_was(
    kind: str, cohort: list[tuple[Width, int]], seed: int
) -> None:
    net, model = fed.elastic(kind)
    current = fed.snapshot(model)
    everything = {key: torch.ones_like(t, dtype=torch.bool) for key, t in current.items()}
    sent, literal = [], []
    for i, (ceiling, count) in enumerate(cohort):
        held, widths = (
            random_units(model, ceiling, seed + i),
            [w for w in FIFTHS.widths if w <= ceiling],
        )
        mask, full = fed.holds(net, model, held, widths), fed.random_state(current, seed + i)
        whole = {key: torch.where(mask[key], full[key], t) for key, t in current.items()}
        literal.append((everything, count, whole))
        sent.append((fed.slice_of(full, mask), slice_index(model, held, widths), count))
    fed.assert_close(merged(model, sent, take_all=True), fed.mean_of_holders(current, literal))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ceiling", ["1/5", "3/5", "1"])
def test_a_client_alone_is_taken_as_it_is(kind: str, ceiling: str) -> None:
    net, model = fed.elastic(kind)
    current, width = fed.snapshot(model), Fraction(ceiling)
    widths = [w for w in FIFTHS.widths if w <= width]
    mask, full = (
        fed.holds(net, model, fed.first_units(model, width), widths),
        fed.random_state(current, 5),
    )
    where = slice_index(model, model.plan.leading_units(width), widths)
    found = merged(model, [(fed.slice_of(full, mask), where, 37)])
    fed.assert_close(
        found, {key: torch.where(mask[key], full[key], t) for key, t in current.items()}, 1e-15
    )


@few
@given(cohorts, st.randoms(use_true_random=False), st.integers(0, 10**6))
def test_the_order_of_the_clients_changes_no_more_than_rounding(
    cohort: list, rng: object, seed: int
) -> None:
    results = []
    for shuffled in (False, True):
        net, model = fed.elastic("batchnorm")
        current = fed.snapshot(model)
        order = list(enumerate(cohort))
        if shuffled:
            rng.shuffle(order)
        sent = []
        for i, (ceiling, count) in order:
            widths = [w for w in FIFTHS.widths if w <= ceiling]
            mask = fed.holds(net, model, fed.first_units(model, ceiling), widths)
            part = fed.slice_of(fed.random_state(current, seed + i), mask)
            sent.append(
                (part, slice_index(model, model.plan.leading_units(ceiling), widths), count)
            )
        results.append(merged(model, sent))
    fed.assert_close(*results, 1e-13)


def test_nobody_at_all_leaves_the_model_bit_identical() -> None:
    for kind in KINDS:
        _, model = fed.elastic(kind)
        before = fed.snapshot(model)
        fed.assert_identical(merged(model, []), before)


def test_integer_buffers_are_averaged_exactly_and_keep_their_type() -> None:
    _, model = fed.elastic("counting")
    where = slice_index(model, model.plan.leading_units(Width(1)), FIFTHS.widths)
    sent = []
    for seen, count in ((10**12, 1), (10**12 + 3, 2), (10**12 + 6, 3)):
        tensors = fed.snapshot(model) | {"seen": torch.tensor(seen)}
        sent.append((tensors, where, count))
    found = merged(model, sent)["seen"]
    assert found.dtype == torch.int64
    assert int(found) == 10**12 + 4


def test_weights_in_half_precision_are_summed_in_single() -> None:
    torch.manual_seed(0)
    model = fjord.elasticize(fed.dense(), torch.randn(2, 4))
    model.tensors = {k: torch.nn.Parameter(t.detach().half()) for k, t in model.tensors.items()}
    where = slice_index(model, model.plan.leading_units(Width(1)), FIFTHS.widths)
    sent = [
        ({k: torch.full_like(t, 30.0).detach() for k, t in model.tensors.items()}, where, 5000)
        for _ in range(3)
    ]
    found = merged(model, sent)
    assert all(t.dtype == torch.float16 and bool((t == 30).all()) for t in found.values())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 2**39), min_size=1, max_size=4))
def test_huge_example_counts_stay_exact_enough(counts: list[int]) -> None:
    _, model = fed.elastic("dense")
    current = fed.snapshot(model)
    where = slice_index(model, model.plan.leading_units(Width(1)), FIFTHS.widths)
    states = [fed.random_state(current, i) for i in range(len(counts))]
    expected = fed.weighted_mean(states, counts)
    fed.assert_close(
        merged(model, [(s, where, n) for s, n in zip(states, counts, strict=True)]), expected, 1e-6
    )
