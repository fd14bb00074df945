"""Tensors in safetensors files: read as they were written, and clear errors where that fails."""

import os
from pathlib import Path

import pytest
import torch

from fjord.core.tensor_files import open_tensors, read_tensors, write_tensors

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(7)}


def test_tensors_and_metadata_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS, {"kind": "test"})
    tensors, metadata = read_tensors(path)
    assert metadata == {"kind": "test"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_views_and_parameters_are_written_as_plain_tensors(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(TENSORS["weight"])
    write_tensors(tmp_path / "a", {"turned": weight.T}, {})
    tensors, _ = read_tensors(tmp_path / "a")
    assert torch.equal(tensors["turned"], TENSORS["weight"].T)


def test_a_part_of_a_tensor_can_be_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS, {})
    with open_tensors(tmp_path / "a") as file:
        assert file.get_slice("weight")[:1].tolist() == [[0.0, 1.0, 2.0]]


def test_a_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "a", TENSORS, {})
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_failed_write_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_tensors(path, TENSORS, {})

    def write_half(tensors: object, draft: Path, metadata: object) -> None:
        draft.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("fjord.core.tensor_files.save_file", write_half)
    with pytest.raises(ValueError, match="cannot be written: no space left"):
        write_tensors(path, {}, {})
    monkeypatch.undo()
    assert read_tensors(path)[0].keys() == TENSORS.keys()
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_a_complete_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gone: there is no such file"):
        read_tensors(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist"):
        write_tensors(tmp_path / "nowhere" / "a", TENSORS, {})
    write_tensors(tmp_path / "a", TENSORS, {})
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[:-1])
    with pytest.raises(ValueError, match="a: not a complete safetensors file"):
        read_tensors(tmp_path / "a")
