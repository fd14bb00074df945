"""Write results from run folders alone: pictures, numbers as JSON, Markdown and an HTML page."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fjord.report.groups import run_commits
from fjord.report.panels import draw_panels
from fjord.report.templating import render_template
from reproduction.compare import RULES
from reproduction.exact import svd_runs, svd_section, table1b_section
from reproduction.figures import PaperFigure
from reproduction.measured import MeasuredCurve
from reproduction.sections import ResultSection, SectionVerdict, make_section
from reproduction.theorem1_figure import draw_theorem1

TEMPLATES = Path(__file__).with_name("templates")
INTRODUCTION = (
    "Written by `python -m reproduction results` from run folders; each row of numbers names the "
    "folders it is made of. Accuracy is in per cent; Shakespeare is in negative perplexity, as in "
    "the paper: higher is better everywhere. Numbers are mean ± sample standard deviation over "
    "seeds. The paper's numbers are those of its text; none is read off a picture."
)
UNFINISHED = "Unfinished; only finished models are in the numbers"
NO_RUN = "There is no finished run yet."
VERDICT_HEAD = ["task", "claim", "verdict", "here", "the paper's number", "runs"]


@dataclass(frozen=True)
class FigureResult:
    """A section with its picture, if there is one, and what people wrote about it."""

    section: ResultSection
    picture: Path | None
    notes: str


def make_result(figure: PaperFigure, runs: Path) -> ResultSection:
    """Make a figure's section from the runs there are."""
    if figure.kind == "svd":
        return svd_section(figure, runs)
    if figure.kind == "table1b":
        return table1b_section(figure, runs)
    return make_section(figure, runs)


def draw_section(section: ResultSection, runs: Path, folder: Path) -> Path | None:
    """Draw a section's picture and write its numbers; return the picture if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = section.figure
    numbers = json.dumps(section_data(section), indent=1)
    (folder / f"{figure.name}.json").write_text(f"{numbers}\n")
    picture = folder / f"{figure.name}.png"
    if figure.kind == "svd":
        return _draw_svd(figure, runs, picture)
    if not section.panels:
        return None
    return draw_panels(section.panels, figure.title, section.origin, picture)


def _draw_svd(figure: PaperFigure, runs: Path, picture: Path) -> Path | None:
    """Draw the first seed of each setting."""
    first = []
    for name in figure.curves:
        by_seed = svd_runs(runs, name)
        if by_seed:
            first.append(by_seed[min(by_seed)])
    return draw_theorem1(first, picture) if first else None


def section_data(section: ResultSection) -> dict[str, Any]:
    """Return a section as plain data, each number with its run folders."""
    return {
        "figure": section.figure.name,
        "curves": [_curve_data(one) for one in section.measured],
        "tables": [asdict(table) for table in section.tables],
        "claims": [asdict(verdict) for verdict in section.verdicts],
    }


def _curve_data(one: MeasuredCurve) -> dict[str, Any]:
    return {
        "task": one.task.name,
        "curve": one.curve.name,
        "runs": one.folders,
        "commits": run_commits(one.runs.values()),
        "unit": one.metric,
        "points": {str(width): dict(values) for width, values in one.points.items()},
        "stats": {str(width): asdict(value) for width, value in one.stats.items()},
    }


def read_notes(path: Path) -> dict[str, str]:
    """Return what people wrote, by figure: a Markdown file with a heading `## NAME` for each."""
    if not path.is_file():
        return {}
    parts = re.split(r"^## +(\S+) *$", path.read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def render_markdown(results: Sequence[FigureResult], start: str, base: Path) -> str:
    """Return all results as one Markdown text whose pictures are named from a base folder."""
    return "\n".join(_markdown_parts(results, start, base)) + "\n"


def _markdown_parts(results: Sequence[FigureResult], start: str, base: Path) -> Iterator[str]:
    yield "# Results: the paper, reproduced\n"
    yield f"{INTRODUCTION}\n"
    if start:
        yield f"{start}\n"
    yield f"## Claims\n\n{RULES}\n"
    yield _markdown_table(VERDICT_HEAD, [_marked_verdict(one) for one in all_verdicts(results)])
    for result in results:
        yield from _figure_markdown(result, base)


def _figure_markdown(result: FigureResult, base: Path) -> Iterator[str]:
    section = result.section
    figure = section.figure
    yield f"## {figure.title}\n\n`python -m reproduction {figure.name}`\n"
    if result.picture:
        yield f"![{figure.title}]({result.picture.relative_to(base).as_posix()})\n"
    for table in section.tables:
        yield f"**{table.title}**\n\n{_markdown_table(table.head, table.rows)}"
    if not section.tables:
        yield f"{NO_RUN}\n"
    if section.unfinished:
        yield f"{UNFINISHED}: {'; '.join(section.unfinished)}.\n"
    if result.notes:
        yield f"{result.notes}\n"


def all_verdicts(results: Sequence[FigureResult]) -> list[SectionVerdict]:
    """Return the verdicts of all figures."""
    return [verdict for result in results for verdict in result.section.verdicts]


def _verdict_row(verdict: SectionVerdict) -> list[str]:
    """Return a row of the table of claims, as plain text."""
    return [
        verdict.task,
        verdict.text,
        verdict.verdict,
        verdict.details,
        verdict.paper,
        verdict.folders or "none",
    ]


def _marked_verdict(verdict: SectionVerdict) -> list[str]:
    """Return the same row with Markdown: the verdict bold, folders as code."""
    row = _verdict_row(verdict)
    row[2] = f"**{row[2]}**"
    if verdict.folders:
        row[-1] = f"`{row[-1]}`"
    return row


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for row in (head, ["---"] * len(head), *rows):
        cells = [cell.replace("|", "/") for cell in row]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def render_page(results: Sequence[FigureResult], start: str) -> str:
    """Return all results as one HTML page that needs no other file."""
    return render_template(
        "results.html",
        TEMPLATES,
        title="The paper, reproduced",
        introduction=split_paragraphs(INTRODUCTION) + split_paragraphs(start),
        rules=RULES.replace("*", ""),
        verdict_head=VERDICT_HEAD,
        verdict_rows=[_verdict_row(verdict) for verdict in all_verdicts(results)],
        results=results,
        unfinished=UNFINISHED,
        no_run=NO_RUN,
        paragraphs=split_paragraphs,
        encode=_encode_picture,
    )


def _encode_picture(path: Path) -> str:
    """Return a picture as the address of an image that is inside the page."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def split_paragraphs(text: str) -> list[str]:
    r"""Return the paragraphs and list items of a Markdown text, without its marks.

    >>> split_paragraphs("So far: `a < b`.\n\n- one\n- **two**")
    ['So far: a < b.', '- one', '- two']
    """
    plain = re.sub(r"[*`]", "", text)
    parts = re.split(r"\n\s*\n|\n(?=- )", plain)
    return [part for part in parts if part]
