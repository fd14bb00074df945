"""Files that are written completely or not at all."""

import threading
from pathlib import Path

import pytest

from fjord.core.files import atomic_write, draft_path, write_text


def test_the_draft_replaces_the_file_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with atomic_write(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def write_half() -> None:
        with atomic_write(path) as draft:
            draft.write_text("ne")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_before_it_writes_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "page.html"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    texts = ["a" * 200_000, "b" * 300_000]
    write_text(path, texts[0])
    is_done = threading.Event()

    def write_often() -> None:
        for turn in range(60):
            write_text(path, texts[turn % 2])
        is_done.set()

    writer = threading.Thread(target=write_often)
    writer.start()
    num_reads = 0
    while num_reads == 0 or not is_done.is_set():
        assert path.read_text() in texts
        num_reads += 1
    writer.join()


def test_a_draft_is_hidden_beside_its_file(tmp_path: Path) -> None:
    draft = draft_path(tmp_path / "model.safetensors")
    assert draft.parent == tmp_path
    assert draft.name.startswith(".model.safetensors.")
