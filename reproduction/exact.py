"""The two parts of the paper that need no training of its tasks: Table 1b, and Theorem 1 by experiment."""

from pathlib import Path
from statistics import fmean
from typing import Any

from fjord.elastic.elasticize import elasticize
from fjord.elastic.footprint import measure_footprints
from fjord.experiments.runs import RunFolder
from fjord.models.catalog import PAPER_MODELS
from fjord.report.numbers import seed_stat
from reproduction.compare import FAILS, HOLDS, PARTLY
from reproduction.figures import PaperFigure
from reproduction.measured import folder_text
from reproduction.paper_claims import TABLE1B
from reproduction.sections import ResultSection, ResultTable, SectionVerdict, format_value

NAMES = {"macs": "MACs", "weights": "parameters"}
LIMIT = {"paper": 5.0, "decaying": 1.0}
"""Per cent of distance that counts as recovered: a constant step keeps the noise of its last batches."""


def count_table1b(runs: Path) -> RunFolder:
    """Count the paper's models at each width into a run folder, unless it is there."""
    folder = RunFolder(runs / "table1b" / "0")
    if folder.metrics():
        return folder
    if not (folder.path / "config.json").exists():
        RunFolder.create(folder.path, {"recipe": "table1b", "models": list(PAPER_MODELS)})
    for name, make in PAPER_MODELS.items():
        entry = make()
        rows = measure_footprints(
            elasticize(entry.model, entry.inputs, freeze=entry.freeze), entry.inputs
        )
        counts = [{"width": str(r.width), "macs": r.macs, "weights": r.weights} for r in rows]
        folder.append({"model": name, **count} for count in counts)
    return folder


def table1b_section(figure: PaperFigure, runs: Path) -> ResultSection:
    """Compare our counts with the paper's, at the precision it prints."""
    folder, rows, verdicts = count_table1b(runs), [], []
    for model, stated in TABLE1B.items():
        own = [row for row in folder.metrics() if row["model"] == model]
        for kind, printed in stated.items():
            ours = [row[kind] for row in own]
            name = f"{model}: {NAMES[kind]}"
            rows.append([name, *(f"{n:,}" for n in ours), "table1b/0"])
            rows.append(
                [f"{name}, the paper", *(f"{n:,.0f}" for n in printed), "the paper's Table 1b"]
            )
            verdicts.append(_same_print(model, kind, ours, printed))
    head = ["", *(f"p = {row['width']}" for row in own), "runs"]
    return ResultSection(
        figure, tables=(ResultTable("MACs and weights", head, rows),), verdicts=tuple(verdicts)
    )


def _same_print(
    model: str, kind: str, ours: list[int], printed: tuple[float, ...]
) -> SectionVerdict:
    units = [1e6 if n >= 1e6 else 1e3 for n in printed]
    same = [
        round(a / unit) == round(b / unit) for a, b, unit in zip(ours, printed, units, strict=True)
    ]
    verdict = HOLDS if all(same) else PARTLY if any(same) else FAILS
    details = f"{sum(same)} of {len(same)} widths are equal as printed"
    text = f"Table 1b: {NAMES[kind]} of {model}"
    return SectionVerdict(
        f"{model}-{kind}", text, model, "see the table", verdict, details, "table1b/0"
    )


def svd_section(figure: PaperFigure, runs: Path) -> ResultSection:
    """Show how far each rank is from the best approximation at the end."""
    rows: list[list[str]] = []
    verdicts: list[SectionVerdict] = []
    for name in figure.curves:
        found = svd_runs(runs, name)
        if not found:
            continue
        last = {seed: run.metrics()[-1]["distance"] for seed, run in found.items()}
        ranks = [
            seed_stat(100 * distances[k] for distances in last.values())
            for k in range(len(next(iter(last.values()))))
        ]
        folders = folder_text(f"theorem1/{name}", found)
        rows.append([name, str(len(found)), *(format_value(one) for one in ranks), folders])
        verdicts.append(_recovered(name, last, folders))
    head = ["setting", "seeds", *(f"k = {k}" for k in range(1, len(rows[0]) - 2))] if rows else []
    title = "Relative distance to the best rank-k approximation at the end (%)"
    tables = (ResultTable(title, [*head, "runs"], rows),) if rows else ()
    return ResultSection(figure, tables=tables, verdicts=tuple(verdicts))


def svd_runs(runs: Path, name: str) -> dict[int, RunFolder]:
    """Return the finished runs of a setting by seed."""
    found: dict[int, RunFolder] = {}
    for path in sorted((runs / "theorem1" / name).glob("*/config.json")):
        run = RunFolder(path.parent)
        rows = run.metrics()
        if rows and rows[-1]["step"] == run.config["steps"]:
            found[run.config["seed"]] = run
    return dict(sorted(found.items()))


def _recovered(name: str, last: dict[int, Any], folders: str) -> SectionVerdict:
    """Say whether the mean distance at the end is below the limit for every rank."""
    size = len(next(iter(last.values())))
    means = [100 * fmean(distances[k] for distances in last.values()) for k in range(size)]
    good = [mean < LIMIT[name] for mean in means]
    verdict = HOLDS if all(good) else PARTLY if any(good) else FAILS
    text = f"Ordered Dropout recovers the SVD: distance below {LIMIT[name]:g}% for every rank ({name} step)"
    details = "; ".join(f"k = {k}: {mean:.2f}%" for k, mean in enumerate(means, 1))
    return SectionVerdict(
        f"svd-{name}",
        text,
        "theorem1",
        "“This converges and recovers SVD”",
        verdict,
        details,
        folders,
    )
