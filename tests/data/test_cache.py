"""Decoded data: written once, mapped, checked, and safe against other and killed processes."""

import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from commands import Python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fjord.data.cache import cache_folder, load_cached, tensors_digest

KEY = {"source": "here", "files": [["a", 1, 2]]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Build:
    """Some tensors, and how often they were made."""

    def __init__(self, value: int = 0) -> None:
        self.calls, self.value = 0, value

    def __call__(self) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {
            "images": torch.arange(5000).to(torch.uint8) + self.value,
            "labels": torch.arange(7),
        }


def assert_same(found: dict[str, torch.Tensor], build: Build) -> None:
    wanted = build()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def files(folder: Path) -> list[Path]:
    return [f for f in folder.iterdir() if f.suffix != ".lock"]


# -------------------------------------------------------------------------------------- one process


def test_a_second_call_reads_what_the_first_one_built(folder: Path) -> None:
    build = Build()
    for _ in range(3):
        assert_same(load_cached("some", KEY, build), Build())
    assert build.calls == 1
    assert [f.name.rpartition("-")[0] for f in files(folder)] == ["some"]


@pytest.mark.parametrize(
    "key", [{"source": "there"}, KEY | {"files": [["a", 1, 3]]}, KEY | {"version": 2}]
)
def test_another_key_is_built_anew(folder: Path, key: dict) -> None:
    first, second = Build(), Build(1)
    load_cached("some", KEY, first)
    assert_same(load_cached("some", key, second), Build(1))
    assert_same(load_cached("some", KEY, first), Build())
    assert (first.calls, second.calls, len(files(folder))) == (1, 1, 2)


def test_the_order_of_a_key_does_not_matter() -> None:
    build = Build()
    load_cached("some", {"a": 1, "b": 2}, build)
    load_cached("some", {"b": 2, "a": 1}, build)
    assert build.calls == 1


def test_tensors_are_mapped_from_the_file_not_copied(folder: Path) -> None:
    load_cached("some", KEY, lambda: {"x": torch.ones(20_000_000, dtype=torch.uint8)})
    before = anonymous()
    found = load_cached("some", KEY, Build())["x"]
    assert int(found.sum()) == 20_000_000
    assert anonymous() - before < 2_000_000
    assert str(files(folder)[0]) in Path("/proc/self/maps").read_text()


def anonymous() -> int:
    """Return the bytes of memory that no file stands for."""
    status = Path("/proc/self/status").read_text().split("\n")
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def test_writing_to_a_tensor_leaves_the_file_as_it_is() -> None:
    load_cached("some", KEY, Build())["images"].fill_(9)
    assert_same(load_cached("some", KEY, Build()), Build())


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([1, 2, 3, 5])},
        {"b": torch.tensor([1, 2, 3, 4])},
        {"a": torch.tensor([[1, 2], [3, 4]])},
        {"a": torch.tensor([1, 2, 3, 4], dtype=torch.uint64)},
        {"a": torch.tensor([1, 2, 3, 4]), "b": torch.tensor([])},
    ],
)
def test_a_digest_tells_values_names_shapes_and_types_apart(other: dict) -> None:
    assert tensors_digest(other) != tensors_digest({"a": torch.tensor([1, 2, 3, 4])})


def test_a_digest_of_parts_in_another_order_is_the_same() -> None:
    a, b = torch.arange(3), torch.rand(2, 2)
    assert tensors_digest({"a": a, "b": b.T}) == tensors_digest({"b": b.T.contiguous(), "a": a})


# ------------------------------------------------------------------------------------- broken files


def rebuilt(path: Path) -> None:
    """Demand that the broken file is named in a warning, built anew, and whole afterwards."""
    build = Build()
    with pytest.warns(UserWarning, match=path.name):
        assert_same(load_cached("some", KEY, build), Build())
    assert_same(load_cached("some", KEY, build), Build())
    assert build.calls == 1


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_one_flipped_bit_anywhere_is_noticed(folder: Path, data: st.DataObject) -> None:
    load_cached("some", KEY, Build())
    path = files(folder)[0]
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    rebuilt(path)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 1000, -1])
def test_a_file_cut_short_is_noticed(folder: Path, kept: int) -> None:
    load_cached("some", KEY, Build())
    path = files(folder)[0]
    path.write_bytes(path.read_bytes()[:kept])
    rebuilt(path)


def test_a_file_of_another_key_under_this_name_is_noticed(folder: Path) -> None:
    load_cached("some", KEY, Build())
    path = files(folder)[0]
    load_cached("some", {"other": 1}, Build(1))
    other = next(f for f in files(folder) if f != path)
    os.replace(other, path)
    rebuilt(path)


# -------------------------------------------------------------------------------- several processes

CHILD = """
import os, sys, time, torch
from pathlib import Path
import fjord.data.cache as cache
def build():
    with open(sys.argv[1], "a") as file: file.write("x")
    time.sleep(float(sys.argv[2]))
    return {"images": torch.arange(5000).to(torch.uint8), "labels": torch.arange(7)}
if len(sys.argv) > 3:  # die while the file is being written
    import fjord.core.tensor_files as tensor_files
    def half(tensors, draft, metadata):
        Path(draft).write_bytes(b"half")
        open(sys.argv[1], "a").write("w")
        time.sleep(60)
    tensor_files.save_file = half
found = cache.load_cached("some", {"source": "here", "files": [["a", 1, 2]]}, build)
assert torch.equal(found["labels"], torch.arange(7))
"""


def start(notes: Path, seconds: float, *more: str) -> Python:
    return Python("-c", CHILD, str(notes), str(seconds), *more)


def wait_for(notes: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not notes.exists() or notes.read_text() != text:
        assert time.monotonic() < deadline, "the other process never began"
        time.sleep(0.02)


def test_of_two_processes_at_once_one_builds_and_both_have_it(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    children = [start(notes, 1.0) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert notes.read_text() == "x"


@pytest.mark.parametrize(("seconds", "more", "text"), [(60.0, [], "x"), (0.0, ["write"], "xw")])
def test_after_a_kill_the_next_start_builds_and_leaves_no_rest(
    tmp_path: Path, folder: Path, seconds: float, more: list[str], text: str
) -> None:
    notes = tmp_path / "notes"
    child = start(notes, seconds, *more)
    wait_for(notes, text)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len(files(folder)) == len(more)  # the draft
    build = Build()
    assert_same(load_cached("some", KEY, build), Build())
    assert_same(load_cached("some", KEY, build), Build())
    assert build.calls == 1
    assert [f.suffix for f in files(folder)] == [".safetensors"]


# --------------------------------------------------------------------------------------- the folder


def test_the_folder_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FJORD_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "fjord"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fjord"


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        ValueError, match=r"the cache folder .*file/cache cannot be written .*FJORD_CACHE"
    ):
        load_cached("some", KEY, Build())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named_but_its_files_are_read(folder: Path) -> None:
    load_cached("some", KEY, Build())
    folder.chmod(0o500)
    assert_same(load_cached("some", KEY, Build()), Build())
    with pytest.raises(ValueError, match=r"the cache folder .* cannot be written"):
        load_cached("some", {"other": 1}, Build())
    folder.chmod(0o700)


def test_a_full_disk_is_named_and_leaves_nothing(folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # stands for a disk with 4 kB left
    try:
        with pytest.raises(
            ValueError, match=r"the cache folder .* cannot be written .*FJORD_CACHE"
        ):
            load_cached("some", KEY, Build())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(folder) == []
    assert_same(load_cached("some", KEY, Build()), Build())


def test_an_error_of_the_build_stays_what_it_is(folder: Path) -> None:
    def broken() -> dict[str, torch.Tensor]:
        raise ValueError("row 3 has no image")

    with pytest.raises(ValueError, match=r"^row 3 has no image$"):
        load_cached("some", KEY, broken)
    assert_same(load_cached("some", KEY, Build()), Build())
