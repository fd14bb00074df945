"""Where data is looked for, and how it is named when it is missing, wrong or damaged."""

import io
import sys
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
from folders import own_folders, pictures, small_cifar, write  # noqa: F401
from PIL import Image

from fjord.data import cifar10, femnist
from fjord.data.sources import find_source, is_local, source_fingerprint

# ------------------------------------------------------------------------------------------ sources


def test_where_data_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "femnist_digits").mkdir()
    assert find_source(None, "cifar10", "owner/name") == "owner/name"
    monkeypatch.setenv("FJORD_DATA", str(tmp_path))
    assert find_source("given", "cifar10", "owner/name") == "given"
    assert find_source(None, "cifar10", "owner/name") == str(tmp_path / "cifar10")
    held = (
        r"/femnist: there is no such folder; .* holds cifar10 \(recipe cifar10\), "
        r"femnist_digits \(recipe femnist-dig"
    )
    with pytest.raises(ValueError, match=held):
        femnist.load()
    monkeypatch.setenv("FJORD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"FJORD_DATA=.*nowhere: there is no such folder"):
        cifar10.load()


def test_data_that_no_hub_has_must_be_given() -> None:
    with pytest.raises(
        ValueError, match="emnist_byclass is on no hub: give its folder, or set FJORD_DATA"
    ):
        femnist.load_skewed()


@pytest.mark.parametrize(
    ("source", "local"),
    [
        ("name", False),
        ("owner/name", False),
        ("a-b/c.d_e@v1", False),
        ("/a/b", True),
        ("./a", True),
        ("~/a", True),
    ],
)
def test_what_cannot_be_a_hubs_name_is_a_folder(source: str, local: bool) -> None:
    assert is_local(source) == local


def test_a_folder_that_is_there_is_no_hubs_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert is_local("owner/name")
    assert source_fingerprint("owner/name")["source"] == str(tmp_path / "owner" / "name")


@pytest.mark.parametrize(
    ("name", "fault"), [("absent", "there is no such folder"), ("file", "this is a file")]
)
def test_a_source_that_is_no_folder_is_named(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"source .*/{name}: {fault}"):
        cifar10.load(str(tmp_path / name))


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"source {tmp_path}: "):
        cifar10.load(str(tmp_path))


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"source owner/nothing: no such folder here, and the hub does not give it"
    ):
        cifar10.load("owner/nothing")


def test_without_the_extra_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_cifar(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'fjord-fl\[data\]'"):
        cifar10.load(str(folder))


# --------------------------------------------------------------------------- wrong and damaged data


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pictures(1, 32, 32, 3)[0]).save(buffer, "png")
    return buffer.getvalue()


BROKEN = png()[:200] + b"\0\0\0\0" + png()[204:]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"label": [0] * 39 + [10]},
            r"\(train\), column 'label', row 39: label 10 must be from 0 to 9",
        ),
        ({"label": [0] * 5 + [-1] * 35}, r"column 'label', row 5: label -1"),
        ({"label": [0, None] * 20}, r"column 'label', row 1: there is no label"),
        ({"label": [0.5] * 40}, r"column 'label': labels must be whole numbers"),
        ({"label": ["cat"] * 40}, r"column 'label': labels must be whole numbers"),
        (
            {"img": [*pictures(39, 32, 32, 3), *pictures(1, 28, 32, 3)]},
            r"row 39: the image is RGB of 32x28; it must",
        ),
        (
            {"img": pictures(40, 32, 32)},
            r"column 'img', row 0: the image is L of 32x32; it must be RGB of 32x32",
        ),
        (
            {"img": [*pictures(7, 32, 32, 3), *[None] * 33]},
            r"column 'img', row 7: there is no image",
        ),
        (
            {"img": [*pictures(3, 32, 32, 3), *[{"bytes": b"no"}] * 37]},
            r"\(train\), column 'img', row 3: this is not an image",
        ),
        (
            {"img": [*pictures(4, 32, 32, 3), *[{"bytes": BROKEN}] * 36]},
            r"\(train\), column 'img', row 4: ",
        ),
        (
            {"img": [*pictures(2, 32, 32, 3), *[{"bytes": png()[:300]}] * 38]},
            r"column 'img', row 2: ",
        ),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, changed: dict, named: str) -> None:
    folder = small_cifar(tmp_path / "data", **changed)
    with pytest.raises(ValueError, match=named) as caught:
        cifar10.load(str(folder), num_clients=2)
    assert str(folder) in str(caught.value)


def test_an_empty_split_or_one_of_other_columns_is_named(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    table = pq.read_table(folder / "train-00000-of-00001.parquet")
    pq.write_table(table.slice(0, 0), folder / "train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match=r"train-00000-of-00001.parquet: there are no rows in it"):
        cifar10.load(str(folder), num_clients=1)
    pq.write_table(table.rename_columns(["img", "digit"]), folder / "train-00000-of-00001.parquet")
    with pytest.raises(
        ValueError, match=r"parquet: its columns are .*digit \(int64\); those of other files are"
    ):
        cifar10.load(str(folder), num_clients=1)


def test_a_wrong_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", image=pictures(4, 32, 32, 3), label=[0, 1, 2, 3])
    with pytest.raises(
        ValueError, match=r"\(train\): there is no column 'img'; its columns are image, label"
    ):
        cifar10.load(str(folder))


def test_a_column_that_is_no_image_is_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"img": [3, 4], "label": [0, 1]}).to_parquet(
        tmp_path / "data" / "train-0.parquet"
    )
    with pytest.raises(
        ValueError, match=r"\(train\): column 'img' holds Value\('int64'\), not images"
    ):
        cifar10.load(str(tmp_path / "data"))


def test_a_missing_split_is_named_with_those_there_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", img=pictures(4, 32, 32, 3), label=[0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"there is no split 'test'; its splits are train"):
        cifar10.load(str(folder), num_clients=2)


@pytest.mark.parametrize("damage", ["cut", "bytes"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, damage: str) -> None:
    folder = small_cifar(tmp_path / "data")
    file = folder / "train-00000-of-00001.parquet"
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(
        content[:-50]
        if damage == "cut"
        else content[:middle] + bytes(20_000) + content[middle + 20_000 :]
    )
    with pytest.raises(
        ValueError, match=r"train-00000-of-00001.parquet: this parquet file cannot be read|row \d+"
    ):
        cifar10.load(str(folder), num_clients=2)
