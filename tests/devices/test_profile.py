"""What each width costs, the widest that fits a budget, and the JSON of a profile."""

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import made

from fjord.devices.budget import Budget
from fjord.devices.profile import DeviceProfile, read_profile


def test_a_round_is_download_training_and_upload():
    profile = made(step=2.0, setup=3.0, size=50_000, batch_size=16, epochs=2)
    budget = Budget.parse({"examples": 500, "bandwidth": "1kB/s", "deadline": "1h"})
    verdict = profile.check_budget(budget)[-1]
    assert verdict.transfer_seconds == 100.0
    assert verdict.train_seconds == 3.0 + 2 * 32 * 2.0
    assert verdict.seconds == 231.0
    cut = replace(profile, max_steps=50)
    assert cut.check_budget(budget)[-1].seconds == 100.0 + 3.0 + 50 * 2.0
    assert DeviceProfile.from_json(cut.to_json()) == cut
    older = {key: value for key, value in profile.to_json().items() if key != "max_steps"}
    assert DeviceProfile.from_json(older) == profile


def test_the_widest_that_fits_all_limits_is_picked():
    profile = made(kinds=(False, True), step=1.0, memory=10_000_000)
    assert profile.widest_fit(Budget(deadline=6.0, examples=100), False) == Fraction(3, 5)
    assert profile.widest_fit(Budget(memory=4_000_000), True) == Fraction(2, 5)
    assert profile.widest_fit(
        Budget(deadline=6.0, examples=100, memory=2_000_000), False
    ) == Fraction(1, 5)
    assert profile.widest_fit(Budget(), False) == 1
    with pytest.raises(ValueError, match=r"kd=None: the profile of net holds kd=False, True"):
        profile.widest_fit(Budget())


@given(
    step=st.floats(1e-4, 10),
    memory=st.integers(10**4, 10**9),
    size=st.integers(10, 10**8),
    examples=st.integers(1, 500),
)
def test_where_nothing_fits_the_error_names_the_smallest_budget_that_would_do(
    step, memory, size, examples
):
    profile = made(step=step, memory=memory, size=size)
    tight = {"deadline": "0.001ms", "memory": "1kB", "bandwidth": "1MB/s", "examples": examples}
    with pytest.raises(ValueError, match="nothing fits") as raised:
        profile.widest_fit(Budget.parse(tight))
    said = dict(re.findall(r"at least (\w+)=([\w.]+)", str(raised.value)))
    assert said.keys() == {"deadline", "memory"}
    assert profile.widest_fit(Budget.parse({**tight, **said})) >= Fraction(1, 5)


def test_where_more_bandwidth_would_do_the_error_says_how_much():
    profile = made(step=1.0, size=100_000)
    tight = {"deadline": "4s", "bandwidth": "8kbit", "examples": 100}
    with pytest.raises(ValueError, match="training 2s, transfer 40s") as raised:
        profile.widest_fit(Budget.parse(tight))
    (enough,) = re.findall(r"bandwidth=(\w+)", str(raised.value))
    assert enough == "160kbit"
    assert profile.widest_fit(Budget.parse({**tight, "bandwidth": enough})) == Fraction(1, 5)
    with pytest.raises(ValueError, match="no bandwidth would be enough"):
        profile.widest_fit(Budget.parse({**tight, "deadline": "1s"}))


def test_a_profile_survives_json(tmp_path):
    profile = made(kinds=(True, False, None), step=1 / 3)
    text = json.dumps(profile.to_json(Budget(memory=500_000)))
    assert DeviceProfile.from_json(json.loads(text)) == profile
    assert json.loads(text)["answers"][0] == {"kd": True, "width": "2/5", "round_seconds": None}
    (tmp_path / "a.json").write_text(text.replace('"fjord_profile": 1', '"fjord_profile": 2'))
    with pytest.raises(ValueError, match=r"a\.json: fjord_profile=2: this version reads 1"):
        read_profile(tmp_path / "a.json")
