"""The Shakespeare task: the three layouts, the cut into clients, and what is held out."""

import csv
import json
import os
import time
from pathlib import Path

import pytest
import torch
from folders import moved_over
from hypothesis import given
from hypothesis import strategies as st

from fjord.data import shakespeare
from fjord.data.characters import (
    BEGIN,
    CHARACTERS,
    END,
    PADDING,
    UNKNOWN,
)
from fjord.data.federated import IGNORED_TARGET
from fjord.models import shakespeare_rnn
from fjord.training.objective import cross_entropy

DATA = Path(os.environ.get("FJORD_DATA", "")) / "shakespeare" / "roles.jsonl"
needs_data = pytest.mark.skipif(
    "FJORD_DATA" not in os.environ or not DATA.is_file(),
    reason="FJORD_DATA has no shakespeare/roles.jsonl",
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path_factory.mktemp("cache")))


texts = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from(CHARACTERS), max_size=300),
    st.builds(
        lambda n, c: c * n,
        st.sampled_from([0, 78, 79, 80, 81, 159, 160, 161, 162]),
        st.characters(),
    ),
)


lines = st.lists(
    st.text(st.sampled_from("ab ,"), max_size=200).map(lambda text: text + "\n"),
    min_size=1,
    max_size=5,
)


def write_roles(folder: Path, **roles: list[list[str]]) -> str:
    rows = [json.dumps({"client": name, "speeches": speeches}) for name, speeches in roles.items()]
    (folder / "roles.jsonl").write_text("\n".join(rows) + "\n")
    return str(folder)


def said(data, client: int | None) -> str:
    """Return what a client trains on, or with None the whole test set, as text."""
    inputs = data.test.inputs if client is None else data.examples(client)[0]
    marks = {PADDING: "", BEGIN: "<", END: ">", UNKNOWN: "?"}
    return "".join(marks[t] if t in marks else CHARACTERS[t - 1] for t in inputs.flatten().tolist())


def test_a_role_trains_on_all_but_its_last_tenth(tmp_path):
    source = write_roles(
        tmp_path,
        one=[["alone"]],
        two=[["first", "line"], ["second"]],
        many=[[str(i % 10)] for i in range(25)],
    )
    data = shakespeare.load(source)
    assert data.num_clients == 2
    assert said(data, 0) == "<first\nline>"
    assert said(data, 1) == "".join(f"<{i % 10}>" for i in range(23))
    assert said(data, None) == "<second><3><4>"
    assert data.test.owners.tolist() == [0, 1, 1]


@given(st.integers(2, 400))
def test_every_role_has_something_to_train_on_and_something_held_out(count):
    speeches = [str(i) for i in range(count)]
    train, test = shakespeare.split_speeches(speeches)
    assert train + test == speeches
    assert train
    assert len(test) == max(1, int(0.1 * count))


def test_clients_are_the_first_roles_that_speak_enough(tmp_path):
    roles = {f"role{n}": [[f"{n}"]] * n for n in (1, 4, 2, 5, 3)}
    source = write_roles(tmp_path, **roles)
    assert shakespeare.load(source).num_clients == 4
    assert said(shakespeare.load(source, max_clients=1), 0) == "<4><4><4>"
    data = shakespeare.load(source, min_speeches=3, max_clients=2)
    assert [said(data, i) for i in range(2)] == ["<4><4><4>", "<5><5><5><5>"]
    assert shakespeare.load(source, max_clients=None).num_clients == 4


def test_the_model_sees_whole_numbers_and_padding_does_not_count(tmp_path):
    data = shakespeare.load(write_roles(tmp_path, a=[["x" * 200], ["y"]]))
    inputs, targets = data.examples(0)
    logits = shakespeare_rnn()(data.prepare(inputs, None))
    assert (data.inputs.dtype, data.targets.dtype, targets.dtype) == (
        torch.uint8,
        torch.int8,
        torch.int64,
    )
    assert logits.shape == (3, 80, 90)
    changed = torch.where((targets == IGNORED_TARGET)[..., None], torch.randn(90), logits)
    assert cross_entropy(changed, targets) == cross_entropy(logits, targets)


LINES = {
    "HAMLET": ["To be, or not to be,\n", "that is\n", "the question\n"],
    "GHOST": ["Adieu!\n", "Remember me.\n"],
}


def rows_of(said_by: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    return [
        (role, *window)
        for role, own in said_by.items()
        for line in own
        for window in moved_over(line)
    ]


def write_table(
    path: Path, rows: list[tuple], columns: tuple[str, ...] = ("character_id", "x", "y")
) -> None:
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pytest.importorskip("datasets")
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    else:
        pq.write_table(
            pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)}), path
        )


def write_leaf(path: Path, said_by: dict[str, list[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    users = {r: [w for line in own for w in moved_over(line)] for r, own in said_by.items()}
    data = {
        user: {"x": [x for x, _ in own], "y": [y for _, y in own]} for user, own in users.items()
    }
    counts = [len(own) for own in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data}))


@pytest.mark.parametrize(
    "layout", ["train-00000-of-00001.parquet", "shakespeare.csv", "all_data.json"]
)
def test_leaf_without_a_split_holds_out_the_last_line(tmp_path, layout):
    if layout.endswith(".json"):
        write_leaf(tmp_path / layout, LINES)
    else:
        write_table(tmp_path / layout, rows_of(LINES))
    data = shakespeare.load(str(tmp_path))
    assert [said(data, 0), said(data, 1)] == ["<To be, or not to be,\nthat is>", "<Adieu!>"]
    assert said(data, None) == "<the question><Remember me.>"
    assert data.test.owners.tolist() == [0, 1]


@pytest.mark.parametrize("layout", ["parquet", "json"])
def test_a_split_of_the_source_is_kept(tmp_path, layout):
    parts = {"train": LINES, "test": {"GHOST": ["List, list!\n"]}}
    for part, own in parts.items():
        if layout == "json":
            write_leaf(tmp_path / part / "all_data_niid_0_keep_0.json", own)
        else:
            write_table(tmp_path / f"{part}-00000-of-00001.parquet", rows_of(own))
    data = shakespeare.load(str(tmp_path))
    assert said(data, 0) == "<To be, or not to be,\nthat is\nthe question>"
    assert said(data, None) == "<List, list!>"
    assert data.test.owners.tolist() == [1]


def test_a_second_start_does_not_read_the_text_again(tmp_path, monkeypatch):
    source = write_roles(tmp_path, a=[["one"], ["two"]])
    first = shakespeare.load(source)
    monkeypatch.setattr(shakespeare, "read_plays", lambda source: pytest.fail("read again"))
    assert torch.equal(shakespeare.load(source).inputs, first.inputs)


def test_a_changed_text_is_read_again(tmp_path):
    shakespeare.load(write_roles(tmp_path, a=[["one"], ["two"]]))
    assert said(shakespeare.load(write_roles(tmp_path, a=[["three"], ["two"]])), 0) == "<three>"


GOOD = '{"client": "a", "speeches": [["x"], ["y"]]}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "{oops\n", r"roles\.jsonl, line 2: this is not JSON"),
        (
            GOOD + GOOD.replace("x", "\udce9"),
            r"roles\.jsonl, line 2: this is not JSON: 'utf-8' codec",
        ),
        (GOOD + "\n", r"roles\.jsonl, line 2: this is not JSON"),
        (GOOD + "[1]\n", r"line 2: a JSON object is needed, not a list"),
        (GOOD + '{"client": "b", "speeches": []}\n', r"line 2: the role 'b' has no speeches"),
        (
            GOOD + '{"client": "b", "speeches": [["x"], []]}\n',
            r"line 2: the role 'b' has .* a speech without a line",
        ),
        (
            GOOD + '{"client": "b", "speeches": ["x", "y"]}\n',
            r'line 2: a role needs "client" and "speeches"',
        ),
        (GOOD + '{"client": "b"}\n', r'line 2: a role needs "client" and "speeches"'),
        (GOOD + GOOD, r"line 2: the role 'a' is there twice"),
        (GOOD.replace('["x"], ', ""), r"none of 1 roles has 2 speeches; the most is 1"),
        ("", r"none of 0 roles has 2 speeches"),
    ],
)
def test_a_malformed_file_of_roles_is_named(tmp_path, text, message):
    (tmp_path / "roles.jsonl").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        shakespeare.load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"users": [', r"all\.json: not complete JSON"),
        ('{"users": ["a"]}', r"all\.json: there is no user in it"),
        (
            '{"user_data": {"a": {"x": ["b"], "y": []}}}',
            r"""user 'a': lists "x" and "y" of one length are needed""",
        ),
        ('{"user_data": {"a": {"x": [], "y": []}}}', r"""user 'a': has no examples"""),
        ('{"user_data": {"a": {"x": ["b"], "y": [3]}}}', r"all\.json, user 'a': y has 3 in it"),
    ],
)
def test_a_malformed_file_of_leaf_is_named(tmp_path, text, message):
    (tmp_path / "all.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        shakespeare.load(str(tmp_path))


def test_a_role_that_only_the_test_split_has_is_named(tmp_path):
    write_leaf(tmp_path / "train" / "a.json", LINES)
    write_leaf(tmp_path / "test" / "a.json", {"FOOL": ["Nuncle!\n"]})
    with pytest.raises(ValueError, match="the role 'FOOL' is in the test split alone"):
        shakespeare.load(str(tmp_path))


def test_a_wrong_table_is_named(tmp_path):
    write_table(tmp_path / "train.parquet", rows_of(LINES), ("user", "x", "y"))
    with pytest.raises(
        ValueError, match="there is no column 'character_id'; its columns are user, x, y"
    ):
        shakespeare.load(str(tmp_path))
    write_table(tmp_path / "train.parquet", [*rows_of(LINES), ("GHOST", "x", None)])
    with pytest.raises(ValueError, match=r"\(train\): y has None in it"):
        shakespeare.load(str(tmp_path))


def test_an_unknown_layout_says_what_is_accepted(tmp_path):
    (tmp_path / "readme.txt").write_text("plays")
    with pytest.raises(
        ValueError, match=r"nothing here can be read as plays; .* roles\.jsonl, LEAF's JSON"
    ):
        shakespeare.load(str(tmp_path))
    with pytest.raises(ValueError, match="there is no such folder"):
        shakespeare.load(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_speeches": 1}, "min_speeches=1 must be at least 2"),
        ({"min_speeches": 2.5}, "min_speeches=2.5"),
        ({"max_clients": 0}, "max_clients=0 must be at least 1, or None"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        shakespeare.load(str(tmp_path), **options)


@needs_data
def test_the_plays_give_the_numbers_of_the_documents():
    data = shakespeare.load()
    assert (data.num_clients, len(data.inputs), len(data.test.inputs)) == (715, 37_613, 4_429)
    assert int((data.inputs == BEGIN).sum()) == 16_451
    assert int((data.test.inputs == BEGIN).sum()) == 1_851
    assert not (data.inputs == UNKNOWN).any()
    assert sorted(set(data.test.owners.tolist())) == list(range(715))
    whole = shakespeare.load(max_clients=None)
    assert (whole.num_clients, len(whole.inputs), len(whole.test.inputs)) == (1_137, 62_349, 7_377)
    assert torch.equal(whole.inputs[: len(data.inputs)], data.inputs)


@needs_data
def test_every_character_of_the_source_is_there():
    roles = [json.loads(line) for line in DATA.read_text().splitlines()]
    data = shakespeare.load(max_clients=None)
    speeches = [
        len("\n".join(s)) for role in roles if len(role["speeches"]) > 1 for s in role["speeches"]
    ]
    stored = sum(int((i != PADDING).sum()) for i in (data.inputs, data.test.inputs))
    # Of every 81 characters the last is a target alone.
    last = sum(int((t[:, -1] != IGNORED_TARGET).sum()) for t in (data.targets, data.test.targets))
    assert stored + last == sum(speeches) + 2 * len(speeches)


@needs_data
def test_decoding_takes_seconds_and_a_second_start_none_of_them():
    start = time.perf_counter()
    shakespeare.load()
    first = time.perf_counter() - start
    start = time.perf_counter()
    shakespeare.load()
    assert first < 10
    assert time.perf_counter() - start < 2
