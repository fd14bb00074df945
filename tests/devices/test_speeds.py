"""The speed of a tier's devices, from numbers or from a measured profile."""

import json

import pytest

from fjord.core.width import Width
from fjord.devices.speed_table import find_speed_table
from fjord.devices.speeds import ClientWorkload, TierSpeed


def test_a_profile_of_a_device_gives_its_seconds(tmp_path):
    both = [
        {"width": w, "kd": kd, "step_seconds": s * (2 if kd else 1), "setup_seconds": 0.5}
        for w, s in (("1/5", 0.1), ("1", 0.4))
        for kd in (True, False)
    ]
    (tmp_path / "phone.json").write_text(json.dumps({"fjord_profile": 1, "costs": both}))
    row = {"ceiling": "1/5", "profile": "phone.json", "down": "1MB/s", "up": "1MB/s"}
    (tmp_path / "t.json").write_text(json.dumps([row | {"kd": True}]))
    pace = find_speed_table(str(tmp_path / "t.json")).tier_speeds[0]
    assert pace.training_seconds(ClientWorkload(0, 0, 10, 0, Width(1))) == pytest.approx(
        10 * 0.8 + 0.5
    )
    for kd, said in (
        (None, "both, with distillation and without"),
        ("maybe", "no step with kd=maybe"),
    ):
        with pytest.raises(ValueError, match=said):
            TierSpeed.from_row(row | {"kd": kd}, tmp_path)
    failed = [cost | {"time": "failed", "step_seconds": 0.0} for cost in both]
    (tmp_path / "weak.json").write_text(json.dumps({"fjord_profile": 1, "costs": failed}))
    with pytest.raises(ValueError, match=r"weak\.json: no width could be trained on that device"):
        TierSpeed.from_row(row | {"profile": "weak.json", "kd": "true"}, tmp_path)
    with pytest.raises(ValueError, match=r"nothing\.json: is not a profile in JSON"):
        TierSpeed.from_row(row | {"profile": "nothing.json"}, tmp_path)
