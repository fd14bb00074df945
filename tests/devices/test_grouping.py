"""Tiers from a fleet: measured profiles or a table of devices become ceilings."""

import json
import sys
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import made, written

import fjord
from fjord.cli import main
from fjord.devices.budget import Budget
from fjord.devices.fleet_table import read_fleet_table
from fjord.devices.grouping import best_ceilings, group_devices, write_ceilings
from fjord.devices.tiers import read_ceilings

FIFTHS = fjord.uniform_widths(5).widths


@given(
    st.dictionaries(
        st.sampled_from(fjord.uniform_widths(8).widths), st.integers(1, 50), min_size=1
    ),
    st.integers(1, 8),
)
def test_the_ceilings_waste_the_least_width_of_all_that_shut_nobody_out(carried, num_tiers):
    def wasted(tiers):
        return sum(n * (own - max(t for t in tiers if t <= own)) for own, n in carried.items())

    lowest, *rest = sorted(carried)
    size = min(num_tiers - 1, len(rest))
    found = best_ceilings(carried, num_tiers)
    assert found[0] == lowest
    assert len(found) <= num_tiers
    assert wasted(found) == min(wasted((lowest, *chosen)) for chosen in combinations(rest, size))


def fleet(*speeds):
    """Devices that take 1/speed seconds for a step at full width."""
    return [made(f"d{i}", step=1 / speed) for i, speed in enumerate(speeds)]


def test_measured_profiles_become_tiers_that_a_run_reads(tmp_path):
    path = written(
        tmp_path, fleet(1, 0.7, 0.5, 0.5, 0.25, 0.1)
    )  # steps of 10 examples; 10 of them in 10 s
    grouped = group_devices(read_fleet_table([path]), Budget(deadline=10.0, examples=100), 5)
    assert list(grouped.widest_fits.values()) == [
        1,
        Fraction(3, 5),
        Fraction(2, 5),
        Fraction(2, 5),
        Fraction(1, 5),
        None,
    ]
    assert [grouped.count_excluded(width) for width in FIFTHS] == [1, 2, 4, 5, 5]
    assert grouped.tiers == (Fraction(1, 5), Fraction(2, 5), Fraction(3, 5), Fraction(1))
    write_ceilings(tmp_path / "ceilings.json", grouped.client_ceilings())
    write_ceilings(tmp_path / "ceilings.csv", grouped.client_ceilings(7))
    assert read_ceilings(tmp_path / "ceilings.json", 5).ceilings == [
        1,
        *map(Fraction, ("3/5", "2/5", "2/5", "1/5")),
    ]
    dealt = Counter(map(str, read_ceilings(tmp_path / "ceilings.csv", 7).ceilings))
    assert dealt == {"1": 2, "3/5": 2, "2/5": 2, "1/5": 1}
    few = group_devices(read_fleet_table([path]), Budget(deadline=10.0, examples=100), 2)
    assert few.tiers == (Fraction(1, 5), Fraction(2, 5))
    assert [few.count_in_tier(tier) for tier in few.tiers] == [1, 4]


TABLE = """name,count,speed,memory,bandwidth
flagship,2,1,4GB,
middle,3,0.5,4GB,8kbit
old,5,1,500kB,
"""


def test_a_table_of_devices_is_reckoned_from_one_profile(tmp_path):
    (tmp_path / "fleet.csv").write_text(TABLE)
    machines = read_fleet_table(
        [tmp_path / "fleet.csv"], made(step=1.0, setup=2.0, size=1000, memory=1_000_000)
    )
    budget = Budget(deadline=20.0, examples=100)
    seconds = {m.name: [v.seconds for v in m.check_budget(budget, False)] for m in machines}
    assert seconds["flagship"] == pytest.approx([2 + 10 * w for w in (0.2, 0.4, 0.6, 0.8, 1)])
    assert seconds["middle"] == pytest.approx(
        [2 * (2 + 10 * w) + 2 * w for w in (0.2, 0.4, 0.6, 0.8, 1)]
    )
    grouped = group_devices(machines, budget, 5)
    assert grouped.widest_fits == {"flagship": 1, "middle": Fraction(3, 5), "old": Fraction(2, 5)}
    assert Counter(grouped.client_ceilings()) == {
        Fraction(1): 2,
        Fraction(3, 5): 3,
        Fraction(2, 5): 5,
    }


def test_where_no_device_can_take_part_the_nearest_says_what_it_needs(tmp_path):
    machines = read_fleet_table([written(tmp_path, fleet(1, 4))])
    with pytest.raises(
        ValueError,
        match=r"d1, the nearest: nothing fits: .*takes 500ms .* at least deadline=500ms",
    ):
        group_devices(machines, Budget(deadline=0.1, examples=100), 3)


def test_devices_with_too_little_memory_of_their_own_are_not_told_to_get_a_larger_budget(tmp_path):
    (tmp_path / "fleet.csv").write_text("name,speed,memory\na,1,100kB\nb,0.5,150kB\n")
    machines = read_fleet_table([tmp_path / "fleet.csv"], made(memory=1_000_000))
    says = (
        "a, the nearest, has 100kB of memory, and the smallest width 1/5 needs 200kB: "
        "no budget would be enough"
    )
    with pytest.raises(ValueError, match=says):
        group_devices(machines, Budget(), 3)
    (tmp_path / "fleet.csv").write_text("name,speed,memory\na,1,100kB\nb,0.5,1GB\n")
    machines = read_fleet_table([tmp_path / "fleet.csv"], made(memory=1_000_000))
    with pytest.raises(
        ValueError,
        match=r"b, the nearest: nothing fits: memory=150kB: .* at least memory=200kB",
    ):
        group_devices(machines, Budget(memory=150_000), 3)


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["fjord", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr()


def test_the_command_writes_ceilings_and_a_picture(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "fleet.csv").write_text(TABLE)
    (tmp_path / "here.json").write_text(json.dumps(made(step=1.0).to_json()))
    files = [tmp_path / "fleet.csv", "--profile", tmp_path / "here.json"]
    budget = ["--deadline", "10s", "--examples", "100", "--memory", "800kB"]
    written = ["--output", tmp_path / "c.json", "--plot", tmp_path / "p.png", "--clients", "20"]
    code, said = run(monkeypatch, capsys, "tiers", *files, *budget, *written)
    assert code == 0, said.err
    assert "10 devices, net without distillation" in said.out
    assert "Ceilings of 20 clients, dealt from the 10 devices that can take part" in said.out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert Counter(json.loads((tmp_path / "c.json").read_text())) == {"2/5": 16, "4/5": 4}
    code, said = run(monkeypatch, capsys, "tiers", tmp_path / "fleet.csv")
    assert code == 2
    assert "a table of devices needs a profile" in said.err
    code, said = run(monkeypatch, capsys, "tiers", *files, "--kd")
    assert "--kd: the profiles were not measured with distillation" in said.err
    code, said = run(monkeypatch, capsys, "tiers", *files, "--output", "x.txt")
    assert "--output x.txt: must end in .json or .csv" in said.err
    code, said = run(monkeypatch, capsys, "tiers", "nothing.json")
    assert "nothing.json: cannot be read" in said.err
