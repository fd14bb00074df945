import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import first_units

from fjord.core.width import WidthSpace, kept_units, parse_width, uniform_widths

widths = st.integers(1, 60).flatmap(lambda d: st.integers(1, d).map(lambda n: Fraction(n, d)))


@given(widths, st.integers(1, 3000))
def test_kept_units_is_the_smallest_count_that_reaches_the_share(width, units):
    assert kept_units(width, units) == first_units(width, units)


@given(widths, widths, st.integers(1, 500), st.integers(1, 16))
def test_submodels_are_nested_and_never_empty(a, b, units, multiple):
    low, high = sorted((a, b))
    assert 1 <= kept_units(low, units, multiple) <= kept_units(high, units, multiple) <= units


@given(widths, st.integers(1, 500), st.integers(1, 16))
def test_rounding_reaches_a_multiple_or_everything(width, units, multiple):
    kept = kept_units(width, units, multiple)
    assert kept % multiple == 0 or kept == units
    assert kept - multiple < kept_units(width, units) <= kept


def test_a_float_tier_would_have_been_off_by_one():
    assert kept_units(parse_width("0.6"), 10) == 6


@pytest.mark.parametrize("text", ["2/5", "0.4", "40%", " 40 % ", Fraction(2, 5), "4/10"])
def test_one_width_has_many_spellings(text):
    assert parse_width(text) == Fraction(2, 5)


@pytest.mark.parametrize(
    "bad", ["0", 0, "1.5", "3/2", "150%", "abc", "", "-1/5", "nan", "1/0", None, "inf"]
)
def test_what_is_no_width_is_refused_in_the_user_s_words(bad):
    with pytest.raises(ValueError, match=r"width .* is not a fraction above 0 and at most 1"):
        parse_width(bad)


@pytest.mark.parametrize("bad", [0.4, 1.5, 0.0, float("nan")])
def test_a_float_is_refused_because_it_is_not_exact(bad):
    with pytest.raises(ValueError, match="write it as text"):
        parse_width(bad)


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_conditioning_is_renormalising(k, seed):
    space = uniform_widths(k)
    ceiling = space.widths[seed % k]
    conditioned = space.up_to(ceiling)
    assert conditioned.widths == tuple(w for w in space.widths if w <= ceiling)
    assert set(conditioned.probabilities) == {Fraction(1, len(conditioned.widths))}
    assert conditioned.sample(random.Random(seed)) in conditioned.widths


def test_given_probabilities_are_followed():
    space = WidthSpace.of({"1/4": "1/2", "1/2": "1/4", "1": "1/4"})
    rng = random.Random(0)
    drawn = [space.sample(rng) for _ in range(8000)]
    assert abs(drawn.count(Fraction(1, 4)) / 8000 - 0.5) < 0.02
    assert abs(drawn.count(Fraction(1)) / 8000 - 0.25) < 0.02
    assert space.up_to("1/2").probabilities == (Fraction(2, 3), Fraction(1, 3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: WidthSpace.of([]), "distinct and in rising order"),
        (lambda: WidthSpace.of({"1/2": 0, "1": 1}), "one above 0 for each width"),
        (
            lambda: WidthSpace((Fraction(1, 2), Fraction(1)), (Fraction(1, 2), Fraction(1, 3))),
            "add up to 5/6, not 1",
        ),
        (
            lambda: WidthSpace((Fraction(1), Fraction(1, 2)), (Fraction(1, 2), Fraction(1, 2))),
            "rising order",
        ),
        (lambda: uniform_widths(0), "k must be a whole number of at least 1"),
        (lambda: uniform_widths(5).up_to("1/10"), "ceiling 1/10 is below the smallest width 1/5"),
    ],
)
def test_bad_spaces_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
