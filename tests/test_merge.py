"""Eq. (1), slices, and a whole round, against their literal versions."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

import fed_oracles as fed
import fjord
import oracles
from fed_oracles import FIFTHS, Reply, Setting
from fjord.data.federated import Generated
from fjord.devices.tiers import Listed, Varying, uniform_tiers
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import Kept, put, take
from fjord.elastic.slice import Slice, below, places, taken
from fjord.federation import Federation
from fjord.merge import NestedMean
from fjord.methods import METHODS, find_method
from fjord.strategies.server import apply
from fjord.width import Width, WidthSpace, uniform

KINDS = ("dense", "counting", "cnn", "lstm", "batchnorm")
few = settings(max_examples=12, deadline=None)
cohorts = st.lists(st.tuples(st.sampled_from(FIFTHS.widths), st.integers(1, 3000)), min_size=1, max_size=6)


def merged(model: ElasticModel, replies: list[tuple[fed.State, dict, float]]) -> fed.State:
    mean = NestedMean(model)
    for tensors, where, weight in replies:
        mean.add(tensors, where, weight)
    apply(model, mean, None, {})
    return fed.snapshot(model)


def random_units(model: ElasticModel, width: Width, seed: int) -> Kept:
    """Return random units, unit 0 among them, so that every width has one."""
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for f in model.plan.families:
        count = oracles.first_units(width, f.units) - 1
        others = torch.randperm(f.units - 1, generator=generator)[:count] + 1
        kept[f.name] = torch.cat([torch.zeros(1, dtype=torch.int64), others]).sort().values
    return kept


def rolled_units(model: ElasticModel, width: Width, start: int) -> Kept:
    return {
        f.name: torch.tensor(sorted((start + i) % f.units for i in range(oracles.first_units(width, f.units))))
        for f in model.plan.families
    }


# ------------------------------------------------------------------------------------------------- Eq. (1)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(cohorts, st.integers(0, 10**6))
def test_the_nested_mean_equals_eq1_taken_literally(kind: str, cohort: list[tuple[Width, int]], seed: int) -> None:
    net, model = fed.elastic(kind)
    current = fed.snapshot(model)
    replies = [Reply(c, n, fed.random_state(current, seed + i)) for i, (c, n) in enumerate(cohort)]
    sent = []
    for reply in replies:
        widths = [w for w in FIFTHS.widths if w <= reply.ceiling]
        held = model.plan.ordered(reply.ceiling)
        mask = fed.holds(net, model, fed.first_units(model, reply.ceiling), widths)
        sent.append((fed.slice_of(reply.full, mask), places(model, held, widths), reply.num_examples))
    expected = fed.eq1_literal(net, model, current, replies, FIFTHS)
    found = merged(model, sent)
    fed.assert_close(found, expected)
    assert all(bool(t.isfinite().all()) for t in found.values())
    widest = max(c for c, _ in cohort)
    inside = fed.holds(net, model, fed.first_units(model, widest), [w for w in FIFTHS.widths if w <= widest])
    for key, value in current.items():
        assert torch.equal(found[key][~inside[key]], value[~inside[key]]), f"{key} moved where nobody holds it"


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
        held = rolled_units(model, ceiling, seed + i) if rolling else random_units(model, ceiling, seed + i)
        widths = [Width(1)] if rolling else [w for w in FIFTHS.widths if w <= ceiling]
        mask, full = fed.holds(net, model, held, widths), fed.random_state(current, seed + i)
        literal.append((mask, count, full))
        sent.append((fed.slice_of(full, mask), places(model, held, widths), count))
    expected = fed.mean_of_holders(current, literal)
    found = merged(model, sent)
    fed.assert_close(found, expected)
    for key, value in current.items():
        nobody = ~torch.stack([mask[key] for mask, _, _ in literal]).any(0)
        assert torch.equal(found[key][nobody], value[nobody]), f"{key} moved where nobody holds it"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ceiling", ["1/5", "3/5", "1"])
def test_a_client_alone_is_taken_as_it_is(kind: str, ceiling: str) -> None:
    net, model = fed.elastic(kind)
    current, width = fed.snapshot(model), Fraction(ceiling)
    widths = [w for w in FIFTHS.widths if w <= width]
    mask, full = fed.holds(net, model, fed.first_units(model, width), widths), fed.random_state(current, 5)
    where = places(model, model.plan.ordered(width), widths)
    found = merged(model, [(fed.slice_of(full, mask), where, 37)])
    fed.assert_close(found, {key: torch.where(mask[key], full[key], t) for key, t in current.items()}, 1e-15)


@few
@given(cohorts, st.randoms(use_true_random=False), st.integers(0, 10**6))
def test_the_order_of_the_clients_changes_no_more_than_rounding(cohort: list, rng: object, seed: int) -> None:
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
            sent.append((part, places(model, model.plan.ordered(ceiling), widths), count))
        results.append(merged(model, sent))
    fed.assert_close(*results, 1e-13)


def test_nobody_at_all_leaves_the_model_bit_identical() -> None:
    for kind in KINDS:
        _, model = fed.elastic(kind)
        before = fed.snapshot(model)
        fed.assert_identical(merged(model, []), before)


def test_integer_buffers_are_averaged_exactly_and_keep_their_type() -> None:
    _, model = fed.elastic("counting")
    where = places(model, model.plan.ordered(Width(1)), FIFTHS.widths)
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
    where = places(model, model.plan.ordered(Width(1)), FIFTHS.widths)
    sent = [({k: torch.full_like(t, 30.0).detach() for k, t in model.tensors.items()}, where, 5000) for _ in range(3)]
    found = merged(model, sent)
    assert all(t.dtype == torch.float16 and bool((t == 30).all()) for t in found.values())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 2**39), min_size=1, max_size=4))
def test_huge_example_counts_stay_exact_enough(counts: list[int]) -> None:
    _, model = fed.elastic("dense")
    current = fed.snapshot(model)
    where = places(model, model.plan.ordered(Width(1)), FIFTHS.widths)
    states = [fed.random_state(current, i) for i in range(len(counts))]
    expected = fed.weighted_mean(states, counts)
    fed.assert_close(merged(model, [(s, where, n) for s, n in zip(states, counts, strict=True)]), expected, 1e-6)


# ----------------------------------------------------------------------------------------------- slices


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ceiling", FIFTHS.widths, ids=str)
def test_an_ordered_slice_computes_at_each_width_what_the_model_does(kind: str, ceiling: Width) -> None:
    _, model = fed.elastic(kind)
    space = FIFTHS.upto(ceiling)
    held = model.plan.ordered(ceiling)
    piece = Slice(model, held, space, taken(model, places(model, held, space.widths))).eval()
    model.eval()
    inputs = fed.tiny_data(kind, [3]).inputs[:3]
    for width in space.widths:
        assert oracles.close(piece.at(width)(inputs), model.cut(width)(inputs), 1e-12)
        shapes = [tuple(t.shape) for t in piece.at(width).state_dict().values()]
        assert shapes == [tuple(t.shape) for t in model.cut(width).state_dict().values()]


@pytest.mark.parametrize("kind", ["dense", "counting", "cnn", "lstm", "shared norms"])
@settings(max_examples=5, deadline=None)
@given(ceiling=st.sampled_from(FIFTHS.widths), seed=st.integers(0, 10**6))
def test_a_slice_of_random_units_equals_the_masked_model(kind: str, ceiling: Width, seed: int) -> None:
    norms, kind = ("shared", "batchnorm") if kind == "shared norms" else ("layers", kind)
    net, model = fed.elastic(kind, norms=norms)
    held = random_units(model, ceiling, seed)
    piece = Slice(model, held, FIFTHS, taken(model, places(model, held, FIFTHS.widths))).eval()
    inputs = fed.tiny_data(kind, [3]).inputs[:3]
    for width in FIFTHS.widths:
        kept = {
            f.name: torch.tensor([u for u in held[f.name].tolist() if u < -(-width * f.units // 1)])
            for f in model.plan.families
        }
        mask = {name: m.double() for name, m in fed.unit_masks(net, model, kept).items()}
        expected = oracles.masked_output(net.eval(), oracles.all_tensors(net), mask, (inputs,))
        assert oracles.close(piece.at(width)(inputs), expected)


@pytest.mark.parametrize("ceiling", ["2/5", "1"])
def test_a_slice_of_random_units_has_the_norm_layers_of_its_widths(ceiling: str) -> None:
    net, model = fed.elastic("batchnorm")
    model.load_state_dict(
        {k: t.abs() + 0.5 if "var" in k else t for k, t in fed.random_state(fed.snapshot(model), 3).items()}
    )
    held, space = random_units(model, Width(ceiling), 4), FIFTHS.upto("3/5")
    piece = Slice(model, held, space, taken(model, places(model, held, space.widths))).eval()
    inputs = fed.tiny_data("batchnorm", [3]).inputs[:3]
    for width in space.widths:
        kept = below(model.plan, held, width)
        mask = {name: m.double() for name, m in fed.unit_masks(net, model, kept).items()}
        weights = {}
        for name, value in oracles.all_tensors(net).items():
            stored = model.tensors.get(f"{name}@{width}")
            if stored is None:
                weights[name] = model.tensors[name].detach()
                continue
            whole = torch.ones_like(value)  # the stored layer has the first units only: the rest is masked anyway
            whole[tuple(slice(n) for n in stored.shape)] = stored.detach()
            weights[name] = whole
        expected = oracles.masked_output(net.eval(), weights, mask, (inputs,))
        assert oracles.close(piece.at(width)(inputs), expected)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(ceiling=st.sampled_from(FIFTHS.widths), seed=st.integers(0, 10**6))
def test_what_is_taken_is_the_held_elements_and_goes_back_to_its_place(kind: str, ceiling: Width, seed: int) -> None:
    net, model = fed.elastic(kind)
    held, widths = random_units(model, ceiling, seed), FIFTHS.upto(ceiling).widths
    where, mask = places(model, held, widths), fed.holds(net, model, held, widths)
    got = taken(model, where)
    before = fed.snapshot(model)
    fed.assert_identical({k: t.detach() for k, t in got.items()}, fed.slice_of(before, mask))
    for key, value in got.items():
        marked = torch.zeros_like(before[key])
        put(marked, where[key], torch.ones_like(value, requires_grad=False).detach())
        assert torch.equal(marked.bool(), mask[key])
        assert torch.equal(take(marked, where[key]), torch.ones_like(value))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(FIFTHS.widths), st.integers(0, 10**6))
def test_training_a_slice_of_random_units_moves_its_own_weights_only(width: Width, seed: int) -> None:
    """And by the gradient of the masked full model."""
    net, model = fed.elastic("dense")
    held = random_units(model, Width(3, 5), seed)
    where = places(model, held, FIFTHS.widths)
    piece = Slice(model, held, FIFTHS, taken(model, where)).train()
    data = fed.tiny_data("dense", [5])
    torch.nn.functional.cross_entropy(piece.view(width).net(data.inputs), data.targets).backward()
    mask = {n: m.double() for n, m in fed.unit_masks(net, model, below(model.plan, held, width)).items()}
    weights = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    masked = {n: w * mask[n] for n, w in weights.items()}
    torch.nn.functional.cross_entropy(functional_call(net, masked, (data.inputs,)), data.targets).backward()
    for name, part in piece.view(width).parts.items():
        assert oracles.close(part.tensor.grad, fed.cut_out(weights[name].grad, mask[name].bool()))


# ------------------------------------------------------------------------------- a round, and Algorithm 1


@pytest.mark.parametrize("kind", ["dense", "lstm", "batchnorm"])
@pytest.mark.parametrize("method", ["fjord", "fjord-kd"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_equal_algorithm_1_taken_literally(kind: str, method: str, momentum: float) -> None:
    setting = Setting(
        kind,
        method,
        ceilings=("1/5", "3/5", "0.99", "1"),
        sizes=(6, 10, 4, 11),
        rounds=2,
        batch=4,
        epochs=2,
        momentum=momentum,
    )
    found, _ = fed.train(setting.make())
    fed.assert_close(found, fed.algorithm1(setting), 1e-9)


def test_a_lone_weak_client_trains_nothing_beyond_its_ceiling() -> None:
    setting = Setting("batchnorm", "fjord-kd", ceilings=("2/5",), sizes=(8,), rounds=3)
    federation, net = setting.make(), setting.net()
    before = fed.snapshot(federation.model)
    found, _ = fed.train(federation)
    widths = [Width(1, 5), Width(2, 5)]
    inside = fed.holds(net, federation.model, fed.first_units(federation.model, Width(2, 5)), widths)
    for key, value in before.items():
        assert torch.equal(found[key][~inside[key]], value[~inside[key]]), key
    assert not torch.equal(found["stem.weight"], before["stem.weight"])


def test_with_distillation_the_teacher_is_the_largest_width_the_client_can_hold() -> None:
    setting = Setting("dense", "fjord-kd", ceilings=("3/5", "7/10"), sizes=(40, 40), batch=2)
    _, engine = fed.train(setting.make())
    for update in engine.updates:
        assert update.reach == {Width(3, 5): 20}
        assert update.steps[Width(3, 5)] == 20
        assert set(update.steps) == {Width(1, 5), Width(2, 5), Width(3, 5)}


def test_without_distillation_only_the_sampled_width_is_run() -> None:
    setting = Setting("dense", "fjord", ceilings=("3/5",), sizes=(40,), batch=2)
    federation = setting.make()
    _, engine = fed.train(federation)
    drawn = fed.sampled_widths(federation, 0, 0, Width(3, 5), 20)
    expected = {w: drawn.count(w) for w in set(drawn)}
    assert engine.updates[0].steps == expected == engine.updates[0].reach


@pytest.mark.parametrize(
    "method", ["fjord", "fedavg", "heterofl", "fjord-kd", "drop-low-tier", "fedrolex", "efd", "fd"]
)
def test_with_one_full_width_and_strong_clients_a_method_is_plain_fedavg(method: str) -> None:
    setting = Setting("dense", method, space=WidthSpace.of(["1"]), sizes=(6, 8, 11), rounds=3, epochs=2, batch=4)
    found, _ = fed.train(setting.make())
    federation, net = setting.make(), setting.net()
    weights = {key: t.clone() for key, t in net.state_dict().items()}
    for t in range(3):
        answers = []
        for client in range(3):
            mine = fed.dense().double()
            mine.load_state_dict(weights)
            optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
            for inputs, target in fed.batches(federation, client, t):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(mine(inputs), target).backward()
                optimizer.step()
            answers.append(mine.state_dict())
        weights = {k: sum(n * a[k] for n, a in zip((6, 8, 11), answers, strict=True)) / 25 for k in weights}
    fed.assert_close(found, weights, 1e-10)


def test_fedavg_gives_every_client_the_whole_model_whatever_it_can_carry() -> None:
    weak = Setting("dense", "fedavg", ceilings=("1/5", "2/5", "1"), rounds=2)
    strong = replace(weak, ceilings=("1", "1", "1"))
    fed.assert_close(fed.train(weak.make())[0], fed.train(strong.make())[0], 1e-12)


def test_the_step_size_falls_tenfold_at_one_half_and_three_quarters() -> None:
    schedule = Setting(rounds=8, lr=0.4, milestones=(Fraction(1, 2), Fraction(3, 4))).make().schedule
    assert [schedule.lr_at(t) for t in range(8)] == pytest.approx([0.4] * 4 + [0.04] * 2 + [0.004] * 2)


def test_a_last_batch_of_one_example_joins_the_one_before() -> None:
    _, engine = fed.train(Setting("batchnorm", "fjord", ceilings=("1",), sizes=(9,), batch=4).make())
    assert sum(engine.updates[0].reach.values()) == 2
    assert engine.updates[0].num_examples == 9


def test_a_selection_in_another_order_of_families_means_the_same() -> None:
    turned = replace(find_method("fjord"), select=lambda plan, g: dict(reversed(plan.ordered(g.ceiling).items())))
    setting = Setting("dense", "fjord", ceilings=("1/5", "3/5", "1"), sizes=(8, 8, 8))
    expected, _ = fed.train(setting.make())
    found, _ = fed.train(replace(setting, method=turned).make())
    fed.assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["batchnorm", "lstm"])
def test_every_method_trains_what_its_clients_hold_and_nothing_else(method: str, kind: str) -> None:
    """The merged model is the mean over the holders of what the clients sent, for each of two rounds."""
    setting = Setting(kind, method, ceilings=("1/5", "3/5", "1"), sizes=(4, 6, 8), rounds=2)
    federation, net = setting.make(), setting.net()
    engine = fed.Serial(federation)
    before = fed.snapshot(federation.model)
    for _ in federation.rounds(engine):
        replies = []
        for task, update in zip(engine.tasks, engine.updates, strict=True):
            mask = fed.holds(net, federation.model, task.held, task.space.widths)
            fed.assert_identical({k: t.detach() for k, t in task.tensors.items()}, fed.slice_of(before, mask))
            full = {k: t.clone() for k, t in before.items()}
            for key, value in update.tensors.items():
                full[key][mask[key]] = value.reshape(-1)
            replies.append((mask, setting.sizes[task.client_id], full))
        assert replies
        expected = fed.mean_of_holders(before, replies)
        fed.assert_close(fed.snapshot(federation.model), expected)
        assert any(not torch.equal(expected[k], before[k]) for k in before)
        before = fed.snapshot(federation.model)
        engine.tasks.clear()
        engine.updates.clear()


# ------------------------------------------------------------------------------------------------- cohort


def population(size: int, **changes: object) -> Federation:
    asked: list[int] = []

    def make(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(client)
        generator = torch.Generator().manual_seed(client)
        return torch.randn(4, 4, generator=generator, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)

    federation = Setting("dense", **changes).make()
    federation.data = Generated(size, make, federation.data.test)
    federation.devices = uniform_tiers(5, size)
    federation.asked = asked
    return federation


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 1000), st.integers(0, 500))
def test_a_cohort_has_its_size_and_no_client_twice(size: int, cohort: int, seed: int, t: int) -> None:
    federation = population(size, cohort=cohort, seed=seed)
    chosen = [client for client, _ in federation.cohort(t)]
    assert len(chosen) == min(size, cohort) == len(set(chosen))
    assert all(0 <= client < size for client in chosen)
    assert chosen == [client for client, _ in population(size, cohort=cohort, seed=seed).cohort(t)]


def test_cohorts_differ_between_rounds_and_seeds_and_reach_everyone() -> None:
    federation = population(50, cohort=5, seed=1)
    rounds = [frozenset(c for c, _ in federation.cohort(t)) for t in range(200)]
    assert len(set(rounds)) > 190
    times = [sum(client in chosen for chosen in rounds) for client in range(50)]
    assert min(times) > 5
    assert max(times) < 45
    other = population(50, cohort=5, seed=2)
    assert sum(frozenset(c for c, _ in other.cohort(t)) == rounds[t] for t in range(50)) < 3


def test_only_available_clients_are_chosen_about_the_right_share_of_them() -> None:
    federation = population(2000, cohort=2000, seed=4, availability=Fraction(3, 10))
    rounds = [{c for c, _ in federation.cohort(t)} for t in range(2)]
    for chosen in rounds:
        assert 500 < len(chosen) < 700  # 600 expected, deviation 20.5
    assert 120 < len(rounds[0] & rounds[1]) < 240  # 180 expected: independent from round to round
    few_chosen = {c for c, _ in population(2000, cohort=20, seed=4, availability=Fraction(3, 10)).cohort(0)}
    assert len(few_chosen) == 20
    assert few_chosen <= rounds[0]


def test_a_round_over_a_million_clients_touches_its_cohort_only() -> None:
    federation = population(10**6, cohort=4, rounds=2)
    _, engine = fed.train(federation)
    assert len(engine.updates) == 8
    assert set(federation.asked) == {task.client_id for task in engine.tasks}
    assert len(federation.asked) <= 8


def test_the_ceilings_of_a_cohort_are_widths_of_the_space() -> None:
    federation = Setting("dense", space=uniform(4), ceilings=("0.3", "0.74", "1"), sizes=(4, 4, 4)).make()
    assert {c: g.ceiling for c, g in federation.cohort(0)} == {0: Width(1, 4), 1: Width(1, 2), 2: Width(1)}


def test_a_ceiling_below_the_smallest_width_is_refused_with_the_clients_name() -> None:
    federation = Setting("dense", ceilings=("1", "1", "1")).make()
    usual = Listed([Width(1)] * 3)
    federation.devices = Varying(usual, lambda client, t, width: "1/10" if client == 2 else width)
    with pytest.raises(ValueError, match="client 2: ceiling 1/10 is below the smallest width 1/5"):
        federation.cohort(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"prox": 0.1}, {"scaffold": True}])
def test_clients_that_train_on_views_of_the_model_leave_it_as_it_is(kind: str, changes: dict) -> None:
    federation = Setting(kind, "fjord-kd", ceilings=("1/5", "3/5", "1"), sizes=(4, 6, 8), **changes).make()
    before, engine = fed.snapshot(federation.model), fed.Serial(federation)
    updates = [update for _, update in engine.train(federation.tasks(0))]
    fed.assert_identical(fed.snapshot(federation.model), before)
    assert any(
        not torch.equal(u.tensors[k], t.tensors[k])
        for u, t in zip(updates, engine.tasks, strict=True)
        for k in u.tensors
    )
