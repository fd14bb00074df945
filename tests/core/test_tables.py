"""Tables that people write by hand or save from a spreadsheet."""

from pathlib import Path

import pytest

from fjord.core.tables import read_csv


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_rows_are_read_by_the_names_of_their_columns(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text('name,count\r\nphône,2\r\n"a, b",\r\n', encoding=encoding, newline="")
    assert read_csv(path) == [{"name": "phône", "count": "2"}, {"name": "a, b", "count": ""}]


def test_a_table_of_nothing_but_a_head_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,count\n")
    assert read_csv(tmp_path / "a.csv") == []
