"""What a device reads of its own load, memory and battery, and how many tiers down that is."""

from pathlib import Path
from typing import Any

import pytest

from fjord.devices.host import HostLimits, HostReading, read_host


def device_files(root: Path, **texts: str) -> Path:
    """Lay out what a kernel tells, under another root."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("memory_", "memory.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    2000000 kB\n"


def test_load_memory_and_battery_are_read_from_the_kernel(tmp_path: Path) -> None:
    battery = dict(
        zip(("type", "status", "capacity"), ("Battery\n", "Discharging\n", "17\n"), strict=True)
    )
    root = device_files(
        tmp_path,
        proc__loadavg="3.00 2.00 1.00 2/345 6789\n",
        proc__meminfo=MEMINFO,
        **{f"sys__class__power_supply__BAT0__{k}": v for k, v in battery.items()},
        **{
            f"sys__class__power_supply__mouse__{k}": v
            for k, v in (battery | {"scope": "Device", "capacity": "3"}).items()
        },
        sys__class__power_supply__AC__type="Mains\n",
    )
    assert read_host(root, cores=4) == HostReading(0.75, 2_048_000_000, 17)
    (root / "sys/class/power_supply/BAT0/status").write_text("Charging\n")
    assert read_host(root, cores=4).battery is None
    assert read_host(tmp_path / "nothing", cores=1) == HostReading()


def test_a_container_has_only_what_its_control_groups_leave(tmp_path: Path) -> None:
    root = device_files(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/fleet/node\n",
        sys__fs__cgroup__fleet__node__memory_max="max\n",
        sys__fs__cgroup__fleet__node__memory_current="100\n",
        sys__fs__cgroup__fleet__memory_max="900\n",
        sys__fs__cgroup__fleet__memory_current="700\n",
        sys__fs__cgroup__fleet__memory_stat="anon 300\ninactive_file 50\n",
    )
    assert read_host(root).memory == 250


def test_limits_say_how_many_tiers_down_and_why() -> None:
    limits = HostLimits.from_config(
        {"max-load": 1.5, "min-battery": 20, "spare-mb": 200, "ceiling": "1"}
    )
    assert limits.tiers_down(HostReading(1.5, 10**9, 20)) == (0, "")
    assert limits.tiers_down(HostReading(1.6, 10**9, None)) == (1, "load 1.60 a core")
    assert limits.tiers_down(HostReading(3.2, 10**9, 19)) == (3, "load 3.20 a core, battery at 19%")
    assert limits.free_bytes(HostReading(0.0, 10**9)) == 8 * 10**8
    assert not HostLimits.from_config({"ceiling": "1"})
    with pytest.raises(ValueError, match=r"max-load: this device has no /proc/loadavg"):
        limits.tiers_down(HostReading())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max-load": 0}, "max-load=0 must be above 0"),
        ({"max-load": "1.5"}, "max-load='1.5' must be a number of at least 0, without quotes"),
        ({"min-battery": 120}, "min-battery=120 must be a number of percent"),
        ({"spare-mb": -1}, "spare-mb=-1 must be a number"),
        ({"spare-mb": True}, "spare-mb=True must be a number"),
    ],
)
def test_limits_that_make_no_sense_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HostLimits.from_config(config)
