"""The two parts of the paper without training of its tasks: Table 1b, and Theorem 1."""

from pathlib import Path
from statistics import fmean

from fjord.elastic.elasticize import elasticize
from fjord.elastic.footprint import measure_footprints
from fjord.experiments.runs import RunFolder
from fjord.models.catalog import PAPER_MODELS
from fjord.report.numbers import seed_stat
from reproduction.compare import share_verdict
from reproduction.figures import PaperFigure
from reproduction.measured import folder_text
from reproduction.paper_claims import TABLE1B
from reproduction.sections import ResultSection, ResultTable, SectionVerdict, format_value
from reproduction.theorem1 import is_finished

NAMES = {"macs": "MACs", "weights": "parameters"}
LIMIT = {"paper": 5.0, "decaying": 1.0}
"""Distance in per cent that counts as recovered: a constant step keeps the noise of its batches."""
TABLE_FOLDER = "table1b/0"
Distances = dict[int, list[float]]
"""The last distance of each rank, by seed."""


def count_table1b(runs: Path) -> RunFolder:
    """Count the paper's models at each width into a run folder, unless it is there."""
    folder = RunFolder(runs / TABLE_FOLDER)
    if folder.metrics():
        return folder
    if not folder.has("config.json"):
        RunFolder.create(folder.path, {"recipe": "table1b", "models": list(PAPER_MODELS)})
    for name, make_entry in PAPER_MODELS.items():
        entry = make_entry()
        model = elasticize(entry.model, entry.inputs, freeze=entry.freeze)
        rows = []
        for row in measure_footprints(model, entry.inputs):
            counts = {"width": str(row.width), "macs": row.macs, "weights": row.weights}
            rows.append({"model": name, **counts})
        folder.append(rows)
    return folder


def table1b_section(figure: PaperFigure, runs: Path) -> ResultSection:
    """Compare our counts with the paper's, at the precision it prints."""
    counted = count_table1b(runs).metrics()
    rows: list[list[str]] = []
    verdicts: list[SectionVerdict] = []
    for model, printed_counts in TABLE1B.items():
        own = [row for row in counted if row["model"] == model]
        for kind, printed in printed_counts.items():
            ours = [row[kind] for row in own]
            name = f"{model}: {NAMES[kind]}"
            rows.append([name, *(f"{count:,}" for count in ours), TABLE_FOLDER])
            theirs = [f"{count:,.0f}" for count in printed]
            rows.append([f"{name}, the paper", *theirs, "the paper's Table 1b"])
            verdicts.append(_compare_printed(model, kind, ours, printed))
    head = ["", *(f"p = {row['width']}" for row in own), "runs"]
    table = ResultTable("MACs and weights", head, rows)
    return ResultSection(figure, tables=(table,), verdicts=tuple(verdicts))


def _compare_printed(
    model: str, kind: str, ours: list[int], printed: tuple[float, ...]
) -> SectionVerdict:
    """Compare counts in the unit that the paper prints: millions, or thousands below a million."""
    equal = []
    for own, theirs in zip(ours, printed, strict=True):
        unit = 1e6 if theirs >= 1e6 else 1e3
        equal.append(round(own / unit) == round(theirs / unit))
    return SectionVerdict(
        claim=f"{model}-{kind}",
        text=f"Table 1b: {NAMES[kind]} of {model}",
        task=model,
        paper="see the table",
        verdict=share_verdict(equal),
        details=f"{sum(equal)} of {len(equal)} widths are equal as printed",
        folders=TABLE_FOLDER,
    )


def svd_section(figure: PaperFigure, runs: Path) -> ResultSection:
    """Show how far each rank is from the best approximation at the end."""
    rows: list[list[str]] = []
    verdicts: list[SectionVerdict] = []
    for name in figure.curves:
        finished = svd_runs(runs, name)
        if not finished:
            continue
        last = {seed: run.metrics()[-1]["distance"] for seed, run in finished.items()}
        cells = []
        for values in _percent_by_rank(last):
            cells.append(format_value(seed_stat(values)))
        folders = folder_text(f"theorem1/{name}", finished)
        rows.append([name, str(len(finished)), *cells, folders])
        verdicts.append(_recovery_verdict(name, last, folders))
    if not rows:
        return ResultSection(figure)
    ranks = [f"k = {k}" for k in range(1, len(rows[0]) - 2)]
    title = "Relative distance to the best rank-k approximation at the end (%)"
    table = ResultTable(title, ["setting", "seeds", *ranks, "runs"], rows)
    return ResultSection(figure, tables=(table,), verdicts=tuple(verdicts))


def svd_runs(runs: Path, name: str) -> dict[int, RunFolder]:
    """Return the finished runs of a setting by seed."""
    finished: dict[int, RunFolder] = {}
    for path in (runs / "theorem1" / name).glob("*/config.json"):
        run = RunFolder(path.parent)
        if is_finished(run):
            finished[run.config["seed"]] = run
    return dict(sorted(finished.items()))


def _percent_by_rank(last: Distances) -> list[list[float]]:
    """Return the distances of all seeds in per cent, for each rank."""
    ranks = []
    for distances in zip(*last.values(), strict=True):
        ranks.append([100 * distance for distance in distances])
    return ranks


def _recovery_verdict(name: str, last: Distances, folders: str) -> SectionVerdict:
    """Say whether the mean distance at the end is below the limit for every rank."""
    means = [100 * fmean(distances) for distances in zip(*last.values(), strict=True)]
    limit = LIMIT[name]
    schedule = "constant" if name == "paper" else name
    return SectionVerdict(
        claim=f"svd-{name}",
        text="Ordered Dropout recovers the SVD: distance below "
        f"{limit:g}% for every rank ({schedule} learning rate)",
        task="theorem1",
        paper="“This converges and recovers SVD”",
        verdict=share_verdict([mean < limit for mean in means]),
        details="; ".join(f"k = {k}: {mean:.2f}%" for k, mean in enumerate(means, 1)),
        folders=folders,
    )
