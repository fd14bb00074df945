"""The rule that chooses the width of the next request, without a clock."""

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import IDLE, WIDTHS

from fjord.deploy.policy import LONGEST_PATIENCE, WidthPolicy


def settle(policy, state, load, requests):
    """Serve requests under a load; return the state and the widths used."""
    used = []
    for _ in range(requests):
        used.append(state.width)
        state = policy.after(state, policy.idle[state.width] * load)
    return state, used


@settings(deadline=None)
@given(
    st.floats(0.3, 20),
    st.floats(0.3, 20),
    st.floats(0.002, 0.1),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_a_steady_load_gets_the_largest_width_that_fits_and_keeps_it(
    before, load, target, quantile
):
    policy = WidthPolicy(IDLE, target, quantile)
    state, _ = settle(policy, policy.start(), before, 3 * policy.window)
    state, used = settle(policy, state, load, 3 * policy.window)
    fitting = [w for w in WIDTHS if IDLE[w] * load <= target] or [WIDTHS[0]]
    roomy = [w for w in WIDTHS if IDLE[w] * load * (1 + policy.margin) <= target] or [WIDTHS[0]]
    assert max(roomy) <= state.width <= max(fitting)
    assert sum(a != b for a, b in itertools.pairwise(used)) <= 2, (
        "one change down or up, none back and forth"
    )
    assert set(settle(policy, state, load, 200)[1]) == {state.width}


@settings(deadline=None)
@given(st.floats(1.0, 8.0))
def test_a_load_is_answered_by_its_second_miss_and_forgotten_after_a_window(load):
    policy = WidthPolicy(IDLE, 1.3 * IDLE[WIDTHS[-1]])
    calm, _ = settle(policy, policy.start(), 1.0, 100)
    _, used = settle(policy, calm, load, 10)
    misses = sum(IDLE[w] * load > policy.target for w in used)
    assert misses <= 2 or IDLE[WIDTHS[0]] * load > policy.target
    state, _ = settle(policy, calm, load, 100)
    assert settle(policy, state, 1.0, policy.window)[0].width == WIDTHS[-1]


def test_a_step_up_that_fails_makes_the_next_one_wait_longer():
    policy = WidthPolicy({Fraction(1, 2): 0.001, Fraction(1): 0.002}, 0.003)
    state, changes, last, missed = policy.start(), [], None, 0
    for i in range(6000):  # full width is far slower than the load at half width lets expect
        seconds = 0.001 if state.width < 1 else 0.009
        missed += seconds > policy.target
        state = policy.after(state, seconds)
        if state.width != last:
            changes.append(i)
        last = state.width
    waits = [b - a for a, b in itertools.pairwise(changes) if b - a >= policy.window]
    assert waits[0] < waits[1] < waits[2], "each wait is longer than the one before"
    assert max(waits) == LONGEST_PATIENCE * policy.window
    assert missed / 6000 < 0.02


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(["slower", "stalls"]))
def test_the_target_holds_in_95_of_100_requests_while_load_comes_and_goes(seed, kind):
    rng, policy = random.Random(seed), WidthPolicy(IDLE, 1.3 * IDLE[WIDTHS[-1]])
    state, within, total, widths = policy.start(), 0, 0, 0.0
    for _ in range(8):
        load = rng.choice([1.0, 1.0, 2.0, 3.5])
        for _ in range(rng.randint(150, 400)):
            idle = IDLE[state.width]
            if kind == "slower":
                seconds = idle * load * rng.uniform(0.98, 1.1)
            else:  # time comes in slices of 4 ms, and others may have the next one first
                seconds = idle + 0.004 * sum(
                    rng.random() < 1 - 1 / load for _ in range(1 + int(idle / 0.004))
                )
            within += seconds <= policy.target
            total, widths = total + 1, widths + float(state.width)
            state = policy.after(state, seconds)
    assert within / total >= 0.95
    assert widths / total > 0.3


def test_impossible_targets_and_strange_settings_are_refused():
    with pytest.raises(
        ValueError, match=r"target=0.001 s: the fastest width takes 0.002 s .* at least 0.0022"
    ):
        WidthPolicy(IDLE, 0.001)
    for setting in (
        {"quantile": 1.0},
        {"quantile": 0},
        {"margin": -1},
        {"target": -1},
        {"target": float("inf")},
    ):
        with pytest.raises(ValueError, match=next(iter(setting))):
            WidthPolicy(**{"idle": IDLE, "target": 1.0, **setting})
