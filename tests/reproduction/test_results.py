"""RESULTS.md and its page, from made-up runs."""

import re
from itertools import product

from paper_runs import by_width, claims_of, fake_run

from reproduction.command import write_results
from reproduction.results import read_notes


def test_results_have_no_number_without_a_run_folder(tmp_path):
    runs = tmp_path / "runs"
    for (task, metric), seed in product(
        (("emnist-skewed", "accuracy"), ("shakespeare", "perplexity")), range(3)
    ):
        for i, curve in enumerate(
            ("fjord-kd", "fjord", "efd", "fjord-efd", "fd", "heterofl", "fedrolex")
        ):
            fake_run(
                runs,
                task,
                curve,
                seed,
                by_width(*(9 - i / 3 + w + seed / 9 for w in range(5))),
                metric,
            )
    (runs / "emnist-skewed" / "efd" / "2" / "clients.json").unlink()  # not finished
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.md").write_text("## fig4\nWhy it is so.\n\n## fig5\nAnd this.\n")
    write_results(runs, tmp_path / "RESULTS.md")
    text, kept = (tmp_path / "RESULTS.md").read_text(), tmp_path / "results"
    assert not (kept / "emnist-skewed" / "efd" / "2").exists()
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    numbers = [row for row in rows if row[-1] != "runs" and re.search(r"\d", " ".join(row[1:-1]))]
    assert len(numbers) > 40
    for row in numbers:
        if row[-1] in ("the paper's Table 1b", "none"):
            continue
        assert all((kept / folder / "config.json").is_file() for folder in expanded(row[-1])), row
    assert text.count("![") == 8
    assert all((tmp_path / link).is_file() for link in re.findall(r"\]\((.*?)\)", text))
    assert (
        text.index("Fig. 4: FjORD")
        < text.index("Why it is so.")
        < text.index("Fig. 5: FjORD")
        < text.index("And this")
    )
    claims_told = {row[1] for row in rows if row[2].startswith("**")}
    assert {
        claim.text for claim in claims_of("fig4", "fig5", "fig6", "fig7", "convergence", "fd-efd")
    } <= claims_told
    page = (kept / "index.html").read_text()
    assert page.count("<img ") == 8
    assert "http" not in page
    assert str(tmp_path) not in text + page


def expanded(text):
    """`a/{0,1}, b/2` as folders."""
    for part in text.strip("`").replace("}, ", "}; ").split("; "):
        for piece in re.findall(r"[^,{}]+(?:\{[\d,]+\})?", part):
            base, _, seeds = piece.strip().partition("{")
            yield from (base + seed for seed in seeds.rstrip("}").split(","))


def test_notes_are_read_by_heading(tmp_path):
    (tmp_path / "notes.md").write_text("Preface.\n\n## fig4\nA **b**.\n\nC.\n## svd\nD\n")
    assert read_notes(tmp_path / "notes.md") == {"fig4": "A **b**.\n\nC.", "svd": "D"}
    assert read_notes(tmp_path / "none.md") == {}
