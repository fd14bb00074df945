"""Tiers and their shares (section 5.1), files of ceilings, and transient load."""

import json
import re
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.core.width import Width
from fjord.devices.tiers import (
    DevicePopulation,
    ListedDevices,
    TieredDevices,
    VaryingDevices,
    busy_devices,
    drop_scale_shares,
    read_ceilings,
    shared_tiers,
    uniform_tiers,
)

FIFTH = Width(1, 5)


def counts(devices: DevicePopulation, clients: int, t: int = 0) -> dict[Width, int]:
    return dict(Counter(devices.ceiling(client, t) for client in range(clients)))


# -------------------------------------------------------------------------------------------- tiers


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (1, ["1/5"] * 5),
        ("1.0", ["1/5"] * 5),
        ("0.5", ["1/10"] * 4 + ["3/5"]),
        ("1/2", ["1/10"] * 4 + ["3/5"]),
    ],
)
def test_the_shares_of_uniform_5_are_those_of_the_paper(
    scale: str | int, expected: list[str]
) -> None:
    assert drop_scale_shares(5, scale) == tuple(map(Fraction, expected))


@pytest.mark.parametrize(("scale", "sizes"), [(1, [20] * 5), ("1/2", [10, 10, 10, 10, 60])])
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_clients_are_divided_exactly(
    scale: str | int, sizes: list[int], seed: int
) -> None:
    devices = uniform_tiers(5, 100, drop_scale=scale, seed=seed)
    assert devices.tiers == tuple(Width(i, 5) for i in range(1, 6))
    assert counts(devices, 100) == {i * FIFTH: n for i, n in enumerate(sizes, 1)}


def test_at_drop_scale_one_four_fifths_can_run_two_fifths_and_so_on() -> None:
    ceilings = [uniform_tiers(5, 1000).ceiling(c, 0) for c in range(1000)]
    assert [sum(c >= i * FIFTH for c in ceilings) for i in range(1, 6)] == [
        1000,
        800,
        600,
        400,
        200,
    ]
    halved = [uniform_tiers(5, 1000, drop_scale="1/2").ceiling(c, 0) for c in range(1000)]
    assert [sum(c >= i * FIFTH for c in halved) for i in range(1, 6)] == [1000, 900, 800, 700, 600]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 300), st.fractions(Fraction(1, 100), 1), st.integers(0, 99)
)
def test_every_tier_has_its_share_to_within_one_client(
    k: int, clients: int, scale: Fraction, seed: int
) -> None:
    shares = drop_scale_shares(k, scale)
    assert sum(shares) == 1
    assert len(shares) == k
    assert all(share == scale / k for share in shares[:-1])
    assert shares[-1] >= scale / k
    found = counts(uniform_tiers(k, clients, drop_scale=scale, seed=seed), clients)
    assert sum(found.values()) == clients
    for i, share in enumerate(shares, 1):
        assert abs(found.get(Width(i, k), 0) - share * clients) < 1


def test_any_ceilings_and_shares_can_be_given() -> None:
    devices = shared_tiers({"1": "30%", "1/4": "0.7"}, 1000, seed=3)
    assert devices.tiers == (Width(1, 4), Width(1))
    assert counts(devices, 1000) == {Width(1, 4): 700, Width(1): 300}


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ({"1/2": "0.5", "1": "0.4"}, "1/2, 2/5.*add up to 1"),
        ({"1/2": "0.5", "1": "0.6"}, "add up to 1"),
        ({"1/2": "x", "1": "1"}, "'x'"),
        ({"3/2": "1"}, "'3/2'"),
    ],
)
def test_shares_that_cannot_be_are_refused_by_name(shares: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        shared_tiers(shares, 10)


def test_tiers_without_a_share_each_are_refused() -> None:
    with pytest.raises(ValueError, match="shares: 1 were given for 2 tiers"):
        TieredDevices((Width(1, 2), Width(1)), (Fraction(1),), 10, 0)


@pytest.mark.parametrize("scale", ["0", "1.5", "x", 0.5])
def test_a_drop_scale_that_cannot_be_is_refused(scale: object) -> None:
    with pytest.raises(ValueError, match=str(scale)):
        uniform_tiers(5, 10, drop_scale=scale)


def test_tiers_are_random_but_fixed_by_the_seed() -> None:
    def ceilings(seed: int) -> list[Width]:
        return [uniform_tiers(5, 100, seed=seed).ceiling(c, 0) for c in range(100)]

    assert ceilings(1) == ceilings(1)
    assert ceilings(1) != ceilings(2)
    assert ceilings(1) != sorted(ceilings(1))
    assert [uniform_tiers(5, 100, seed=1).ceiling(c, 7) for c in range(100)] == ceilings(1)


def test_a_ceiling_costs_as_little_among_a_thousand_million_clients() -> None:
    devices = busy_devices(uniform_tiers(5, 10**9), "1/10")
    started = time.perf_counter()
    found = Counter(devices.usual.ceiling(client * 7_654_321, 0) for client in range(130))
    assert time.perf_counter() - started < 2
    assert set(found) == {i * FIFTH for i in range(1, 6)}
    assert devices.ceiling(10**9 - 1, 10**6) in found


# -------------------------------------------------------------------------------- files of ceilings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.json", '["1/5", "0.4", 1, 0.6]'),
        ("object.json", '{"1": "40%", "0": "1/5", "3": 0.6, "2": "1"}'),
        ("rows.csv", "client,ceiling\n3,3/5\n0,0.2\n1,2/5\n2,1\n"),
        ("more.csv", "name,ceiling,client\na,0.2,0\nb,0.4,1\nc,1,2\nd,60%,3\n"),
    ],
)
def test_ceilings_are_read_from_json_and_csv(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    devices = read_ceilings(tmp_path / name, 4)
    assert [devices.ceiling(c, 9) for c in range(4)] == [FIFTH, 2 * FIFTH, Width(1), 3 * FIFTH]
    assert devices.tiers == (FIFTH, 2 * FIFTH, 3 * FIFTH, Width(1))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.json", '["1/5", "1"]', r"2 of 4 clients.*client 2"),
        ("a.json", '{"0": 1, "1": 1, "3": 1}', r"1 of 4 clients.*client 2"),
        ("a.csv", "client,ceiling\n0,1\n1,1\n2,1\n", r"client 3"),
        ("a.json", '["1/5", "1", "7/5", "1"]', r"7/5"),
        ("a.json", '["1/5", "1", "0", "1"]', r"'0'"),
        ("a.json", '["1/5", "1", "wide", "1"]', r"wide"),
        ("a.json", '["1/5", "1", null, "1"]', r"None"),
        ("a.json", '["1/5", "1", [1], "1"]', r"\[1\]"),
        ("a.csv", "client,ceiling\n0,1\n1,abc\n2,1\n3,1\n", r"abc"),
        ("a.csv", "client,ceiling\n0\n1,1\n2,1\n3,1\n", r"None"),
        ("a.csv", "client,ceiling\nzero,1\n1,1\n2,1\n3,1\n", r"zero"),
        ("a.csv", "device,ceiling\n0,1\n", r"client"),
        ("a.csv", "", r"4 of 4 clients"),
        ("a.json", "[1, 2", r"a\.json"),
        ("a.json", "", r"a\.json"),
        ("a.json", "3", r"a\.json"),
        ("a.json", '"1/5"', r"a\.json"),
        ("a.json", "[[[[", r"a\.json"),
    ],
)
def test_a_bad_file_of_ceilings_is_one_error_that_names_file_and_fault(
    tmp_path: Path, name: str, text: str, named: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"ceilings .*a\.(json|csv)") as raised:
        read_ceilings(tmp_path / name, 4)
    assert re.search(named, str(raised.value)), raised.value


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.json.*cannot be read"):
        read_ceilings(tmp_path / "gone.json", 3)
    with pytest.raises(ValueError, match="cannot be read"):
        read_ceilings(tmp_path, 3)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ValueError, match=r"bytes\.csv"):
        read_ceilings(tmp_path / "bytes.csv", 3)


def test_a_client_listed_twice_with_two_ceilings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("client,ceiling\n0,1/5\n1,1\n0,1\n")
    with pytest.raises(ValueError, match=r"twice\.csv.*client 0|client 0.*twice\.csv"):
        read_ceilings(tmp_path / "twice.csv", 2)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.fractions(Fraction(1, 50), 1), min_size=1, max_size=8))
def test_written_ceilings_are_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, widths: list
) -> None:
    path = tmp_path_factory.mktemp("ceilings") / "c.json"
    path.write_text(json.dumps([str(w) for w in widths]))
    assert list(read_ceilings(path, len(widths)).ceilings) == widths


# ----------------------------------------------------------------------------------- transient load


def test_a_ceiling_may_follow_a_function_of_client_round_and_usual_ceiling() -> None:
    usual = ListedDevices([FIFTH, Width(1)])
    seen = []

    def function(client: int, t: int, width: Width) -> str | Width:
        seen.append((client, t, width))
        return "1/5" if t % 2 else width

    devices = VaryingDevices(usual, function)
    assert [devices.ceiling(1, t) for t in range(4)] == [Width(1), FIFTH, Width(1), FIFTH]
    assert seen == [(1, t, Width(1)) for t in range(4)]
    assert devices.tiers == (FIFTH, Width(1))


@pytest.mark.parametrize("bad", ["0", "9/5", None, 0.4])
def test_a_function_that_gives_no_width_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="width"):
        VaryingDevices(ListedDevices([Width(1)]), lambda client, t, width: bad).ceiling(0, 0)


def test_busy_devices_are_one_tier_weaker_about_as_often_as_said() -> None:
    usual = uniform_tiers(5, 500, seed=2)
    devices = busy_devices(usual, "3/10", seed=2)
    lowered = 0
    for client in range(500):
        for t in range(4):
            normal, now = usual.ceiling(client, t), devices.ceiling(client, t)
            assert now == normal or now == normal - FIFTH
            assert now == devices.ceiling(client, t)
            lowered += now < normal
    assert 400 < lowered < 560  # 480 of the 1600 that can be weaker, deviation 18
    assert any(devices.ceiling(c, 0) != devices.ceiling(c, 1) for c in range(500))


def test_the_weakest_tier_stays_when_busy_and_all_may_be_busy() -> None:
    usual = ListedDevices([Width(1, 3), Width(1, 2), Width(1)])
    devices = busy_devices(usual, 1)
    assert [devices.ceiling(c, 0) for c in range(3)] == [Width(1, 3), Width(1, 3), Width(1, 2)]
