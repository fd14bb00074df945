"""The page on the reproduction prints the tables of the code."""

from pathlib import Path

from reproduction import compare, scales

ROOT = Path(__file__).parents[2]


def test_the_page_on_reproduction_prints_the_table_of_the_code():
    assert (
        scales.scale_table(scales.SCALES["laptop"]) in (ROOT / "docs" / "reproduce.md").read_text()
    )
    assert compare.RULES in (ROOT / "docs" / "reproduce.md").read_text().replace("\n", " ")
