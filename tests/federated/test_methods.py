"""What each method gives its clients, as properties of random plans and ceilings."""

import math
from dataclasses import replace
from fractions import Fraction

import fed_oracles as fed
import pytest
import torch
from fed_oracles import Setting, assignments, cohort_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.core.width import Width, WidthSpace, uniform_widths
from fjord.elastic.plan import UnitFamily, UnitSelection, WidthPlan
from fjord.federated.methods import METHODS, ClientContext, find_method
from fjord.training.objective import ordered_dropout

many = settings(max_examples=40, deadline=None)


@st.composite
def plans(draw: st.DrawFn) -> WidthPlan:
    sizes = draw(st.lists(st.integers(2, 70), min_size=1, max_size=4))
    families = tuple(
        UnitFamily(
            f"layer{i}.weight[0]",
            {(f"layer{i}.weight", 0): torch.arange(size)[:, None]},
            (f"layer{i}",),
        )
        for i, size in enumerate(sizes)
    )
    return WidthPlan(families, {f"layer{i}.weight": (size,) for i, size in enumerate(sizes)}, ())


@st.composite
def grants(draw: st.DrawFn, target: str = "any") -> ClientContext:
    space = uniform_widths(draw(st.integers(2, 10)))
    lowest, ceiling = sorted(draw(st.lists(st.sampled_from(space.widths), min_size=2, max_size=2)))
    width = space.largest if target == "largest" else draw(st.sampled_from(space.widths))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    round_index = draw(st.integers(0, 10**6))
    return ClientContext(0, ceiling, width, lowest, space, round_index, generator)


def exact(width: Fraction, units: int) -> int:
    return math.ceil(width * units)


def kept_fairly(plan: WidthPlan, kept: UnitSelection) -> None:
    """Kept units exist, are distinct, in rising order and of every family."""
    assert set(kept) == {f.name for f in plan.families}
    for f in plan.families:
        units = kept[f.name].tolist()
        assert units == sorted(set(units))
        assert set(units) <= set(range(f.num_units))
        assert units


ALL_METHODS = (
    "fjord",
    "fjord-kd",
    "fjord-efd",
    "heterofl",
    "fedrolex",
    "fd",
    "efd",
    "fedavg",
    "single",
    "drop-low-tier",
    "exclusive-small",
)
"""Extended by whoever adds a method."""


def test_all_methods_are_there_and_others_are_refused_by_name() -> None:
    assert sorted(METHODS) == sorted(ALL_METHODS)
    assert all(find_method(name).name == name for name in METHODS)
    with pytest.raises(ValueError, match=r"'fjrod'.*known: .*fjord-kd"):
        find_method("fjrod")


@pytest.mark.parametrize("name", METHODS)
@many
@given(plan=plans(), grant=grants())
def test_every_method_keeps_fair_units_and_samples_widths_it_can_run(
    name: str, plan: WidthPlan, grant: ClientContext
) -> None:
    method = find_method(name)
    if method.nested or name == "fedrolex":
        grant = replace(grant, target=Width(1))
    kept, space = method.select(plan, grant), method.sample(grant)
    kept_fairly(plan, kept)
    assert set(space.widths) <= set(grant.space.widths)
    for f in plan.families:  # at every width it may draw there is something to train
        assert int((kept[f.name] < exact(space.widths[0], f.num_units)).sum()) >= 1
        assert int(kept[f.name][-1]) < exact(grant.target, f.num_units)


@pytest.mark.parametrize(
    "name", ["fjord", "fjord-kd", "fjord-efd", "efd", "fd", "heterofl", "fedrolex"]
)
@many
@given(plan=plans(), grant=grants())
def test_no_client_gets_more_units_than_its_ceiling_allows(
    name: str, plan: WidthPlan, grant: ClientContext
) -> None:
    kept = find_method(name).select(plan, grant)
    for f in plan.families:
        assert len(kept[f.name]) <= exact(grant.ceiling, f.num_units)


@pytest.mark.parametrize("name", ["fjord", "fjord-kd", "heterofl"])
@many
@given(plan=plans(), grant=grants("largest"))
def test_fjord_holds_exactly_the_first_units_of_the_ceiling(
    name: str, plan: WidthPlan, grant: ClientContext
) -> None:
    kept = find_method(name).select(plan, grant)
    for f in plan.families:
        assert kept[f.name].tolist() == list(range(exact(grant.ceiling, f.num_units)))


@pytest.mark.parametrize("name", ["fjord", "fjord-kd"])
@many
@given(grants("largest"))
def test_fjord_samples_every_width_up_to_the_ceiling_as_likely_as_in_d_p(
    name: str, grant: ClientContext
) -> None:
    space = find_method(name).sample(grant)
    assert space.widths == tuple(w for w in grant.space.widths if w <= grant.ceiling)
    assert set(space.probabilities) == {Fraction(1, len(space.widths))}


@many
@given(grants("largest"))
def test_heterofl_samples_only_its_ceiling(grant: ClientContext) -> None:
    assert find_method("heterofl").sample(grant).widths == (grant.ceiling,)


@many
@given(plans(), grants())
def test_fd_keeps_as_many_units_as_the_lowest_tier_can_for_all_clients(
    plan: WidthPlan, grant: ClientContext
) -> None:
    kept = find_method("fd").select(plan, grant)
    for f in plan.families:
        assert len(kept[f.name]) == exact(min(grant.lowest, grant.target), f.num_units)


@many
@given(plans(), grants())
def test_efd_drops_only_what_the_client_cannot_carry(plan: WidthPlan, grant: ClientContext) -> None:
    kept = find_method("efd").select(plan, grant)
    for f in plan.families:
        whole = exact(grant.target, f.num_units)
        assert len(kept[f.name]) == min(whole, exact(grant.ceiling, f.num_units))
        if grant.ceiling >= grant.target:
            assert kept[f.name].tolist() == list(range(whole))


@pytest.mark.parametrize("name", ["fd", "efd"])
def test_random_dropout_reaches_every_unit_of_the_target_about_equally(name: str) -> None:
    plan = fed.elastic("dense")[1].plan
    times = torch.zeros(10)
    for seed in range(600):
        generator = torch.Generator().manual_seed(seed)
        grant = ClientContext(
            0, Width(2, 5), Width(4, 5), Width(2, 5), uniform_widths(5), seed, generator
        )
        times[find_method(name).select(plan, grant)["0.weight[0]"]] += 1
    assert times[8:].sum() == 0
    assert times[:8].min() > 240
    assert times[:8].max() < 360


CAP = Fraction(1, 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10), st.data(), st.integers(2, 128))
def test_fjord_efd_drops_at_most_a_quarter_of_the_units_it_reaches(
    k: int, data: st.DataObject, units: int
) -> None:
    """What it reaches lies within the next tier (section 5.2: p_max of c becomes that of c + 1)."""
    space = uniform_widths(k)
    ceiling = data.draw(st.sampled_from(space.widths))
    family = UnitFamily("f", {("f", 0): torch.arange(units)[:, None]}, ("f",))
    plan, method = WidthPlan((family,), {"f": (units,)}, ()), find_method("fjord-efd")
    reached: set[int] = set()
    for seed in range(40):
        grant = ClientContext(
            0, ceiling, Width(1), ceiling, space, 0, torch.Generator().manual_seed(seed)
        )
        kept = method.select(plan, grant)["f"].tolist()
        assert len(kept) <= exact(ceiling, units)
        reached |= set(kept)
    span = max(reached) + 1
    following = min((w for w in space.widths if w > ceiling), default=ceiling)
    assert exact(ceiling, units) <= span <= exact(following, units)
    assert 1 - Fraction(len(kept), span) <= CAP, f"{len(kept)} of {span} units are kept"


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(uniform_widths(5).widths))
def test_fjord_efd_drops_about_as_much_at_every_width_it_samples(ceiling: Width) -> None:
    """At each width the expected share of dropped units is at most d = 0.25."""
    family = UnitFamily("f", {("f", 0): torch.arange(60)[:, None]}, ("f",))
    plan, method, space = (
        WidthPlan((family,), {"f": (60,)}, ()),
        find_method("fjord-efd"),
        uniform_widths(5),
    )
    trials = [
        ClientContext(0, ceiling, Width(1), ceiling, space, 0, torch.Generator().manual_seed(seed))
        for seed in range(200)
    ]
    kept = [method.select(plan, grant)["f"] for grant in trials]
    for width in method.sample(trials[0]).widths:
        count = exact(width, 60)
        share = sum(int((units < count).sum()) for units in kept) / (200 * count)
        assert 1 - share <= 0.25 + 0.02, f"at width {width} a share of {1 - share:.2f} is dropped"


def test_fjord_efd_reaches_beyond_the_ceiling_and_drops_nothing_at_the_top() -> None:
    plan, space = fed.elastic("dense")[1].plan, uniform_widths(5)
    top = ClientContext(0, Width(1), Width(1), Width(1, 5), space, 0, torch.Generator())
    assert find_method("fjord-efd").select(plan, top)["0.weight[0]"].tolist() == list(range(10))
    assert find_method("fjord-efd").sample(top).widths == space.widths
    beyond = set()
    for seed in range(50):
        grant = ClientContext(
            0, Width(4, 5), Width(1), Width(1, 5), space, 0, torch.Generator().manual_seed(seed)
        )
        beyond |= set(find_method("fjord-efd").select(plan, grant)["0.weight[0]"].tolist())
    assert beyond == set(range(10))


@many
@given(plans(), grants("largest"))
def test_fedrolex_rolls_by_one_each_round_wraps_and_covers_all_units(
    plan: WidthPlan, grant: ClientContext
) -> None:
    def at(round_index: int) -> UnitSelection:
        moved = replace(grant, round_index=round_index)
        return find_method("fedrolex").select(plan, moved)

    t = grant.round_index
    first, second = at(t), at(t + 1)
    for f in plan.families:
        count = exact(grant.ceiling, f.num_units)
        assert set(first[f.name].tolist()) == {(t + i) % f.num_units for i in range(count)}
        assert set(second[f.name].tolist()) == {
            (u + 1) % f.num_units for u in first[f.name].tolist()
        }
    f = plan.families[0]
    times = torch.zeros(f.num_units)
    for turn in range(f.num_units):
        times[at(t + turn)[f.name]] += 1
    assert bool((times == exact(grant.ceiling, f.num_units)).all()), (
        "some unit is trained more often than others"
    )


@many
@given(grants())
def test_drop_low_tier_admits_only_who_can_carry_the_target(grant: ClientContext) -> None:
    assert find_method("drop-low-tier").joins(grant) == (grant.ceiling >= grant.target)
    assert all(find_method(name).joins(grant) for name in METHODS if name != "drop-low-tier")


def test_drop_low_tier_has_only_strong_clients_in_its_cohorts() -> None:
    setting = Setting(
        "dense", "drop-low-tier", ceilings=("1/5", "1", "4/5", "1"), sizes=(4,) * 4, rounds=2
    )
    federation = setting.make()
    assert {c for c, _ in cohort_of(federation, 0)} == {1, 3}
    _, engine = fed.train(federation)
    assert {task.client_id for task in engine.tasks} == {1, 3}


@many
@given(st.integers(2, 10), st.data())
def test_each_method_trains_the_models_it_should(k: int, data: st.DataObject) -> None:
    space = uniform_widths(k)
    lowest = data.draw(st.sampled_from(space.widths))
    for name in METHODS:
        targets = find_method(name).targets(space, lowest)
        if name == "exclusive-small":
            assert targets == (lowest,)
        elif name in ("single", "efd", "fd"):
            assert targets == space.widths
        else:
            assert targets == (Width(1),)


@pytest.mark.parametrize("name", ["fedavg", "single", "drop-low-tier", "exclusive-small"])
@many
@given(plan=plans(), grant=grants())
def test_plain_methods_train_the_whole_target_at_its_own_width(
    name: str, plan: WidthPlan, grant: ClientContext
) -> None:
    method = find_method(name)
    kept = method.select(plan, grant)
    assert all(
        kept[f.name].tolist() == list(range(exact(grant.target, f.num_units)))
        for f in plan.families
    )
    assert method.sample(grant) == WidthSpace.of([grant.target])
    assert not method.nested


def test_only_fjord_kd_distils() -> None:
    logits = {Width(1, 5): torch.tensor([[0.0, 2.0]]), Width(1): torch.tensor([[1.0, 0.0]])}
    target = torch.tensor([1])
    reference = ordered_dropout()(logits.__getitem__, target, Width(1, 5), Width(1))
    for name in ALL_METHODS:
        loss = find_method(name).objective(logits.__getitem__, target, Width(1, 5), Width(1))
        assert (float(loss) == float(reference)) == (name != "fjord-kd")
    p, q = (torch.softmax(logits[w], -1) for w in (Width(1), Width(1, 5)))
    expected = -p[0, 1].log() + (p * (p / q).log()).sum()
    found = find_method("fjord-kd").objective(logits.__getitem__, target, Width(1, 5), Width(1))
    assert float(found) == pytest.approx(float(expected))


def test_random_units_depend_on_the_client_and_the_round_only() -> None:
    setting = Setting("dense", "efd", ceilings=("2/5",) * 6, sizes=(4,) * 6)
    held = {}
    for cohort in (6, 3):
        federation = setting.make() if cohort == 6 else replace(setting, cohort=3).make()
        for t in range(2):
            for task in assignments(federation, t):
                units = tuple(map(tuple, (u.tolist() for u in task.units.values())))
                assert held.setdefault((task.client_id, t), units) == units
    assert len(set(held.values())) > 6
