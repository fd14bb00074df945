"""Writes what came of it: pictures, numbers as JSON, one Markdown file, one HTML page; all from run folders alone."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from fjord.report.groups import run_commits
from fjord.report.panels import draw_panels
from reproduction import theorem1_figure as theorem1
from reproduction.compare import RULES
from reproduction.exact import svd_runs, svd_section, table1b_section
from reproduction.figures import PaperFigure
from reproduction.sections import ResultSection, SectionVerdict, make_section

INTRODUCTION = (
    "Written by `python -m reproduction results` from run folders; each row of numbers names the folders it is made of. Accuracy in per "
    "cent; Shakespeare in negative perplexity, as in the paper: more is better everywhere. Mean ± sample standard "
    "deviation over seeds. The paper's numbers are those of its text; none is read off a picture."
)
UNFINISHED = "Unfinished; only models that are done are in the numbers"
VERDICTS = ["task", "the claim", "verdict", "here", "the paper's number", "runs"]


def make_result(figure: PaperFigure, runs: Path) -> ResultSection:
    """Make a figure's section from the runs there are."""
    special = {"svd": svd_section, "table1b": table1b_section}.get(figure.kind)
    return special(figure, runs) if special else make_section(figure, runs)


def draw_section(one: ResultSection, runs: Path, folder: Path) -> Path | None:
    """Draw a section's picture and write its numbers; return the picture if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{one.figure.name}.json").write_text(json.dumps(section_data(one), indent=1) + "\n")
    picture = folder / f"{one.figure.name}.png"
    if one.figure.kind == "svd":
        first = [found[min(found)] for name in one.figure.curves if (found := svd_runs(runs, name))]
        return theorem1.draw_theorem1(first, picture) if first else None
    return draw_panels(one.panels, one.figure.title, one.origin, picture) if one.panels else None


def section_data(one: ResultSection) -> dict[str, Any]:
    """Return a section as plain data, each number with its run folders."""
    curves = [
        {
            "task": found.task.name,
            "curve": found.curve.name,
            "runs": found.folders,
            "commits": run_commits(found.runs.values()),
            "unit": found.metric,
            "points": {str(width): dict(values) for width, values in found.points.items()},
            "stats": {str(width): asdict(value) for width, value in found.stats.items()},
        }
        for found in one.found
    ]
    tables = [asdict(table) for table in one.tables]
    return {
        "figure": one.figure.name,
        "curves": curves,
        "tables": tables,
        "claims": [asdict(v) for v in one.verdicts],
    }


def read_notes(path: Path) -> dict[str, str]:
    """Return what people wrote, by figure: a Markdown file with a heading `## NAME` for each."""
    if not path.is_file():
        return {}
    parts = re.split(r"^## +(\S+) *$", path.read_text(), flags=re.M)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def render_markdown(
    sections: Sequence[ResultSection], pictures: Mapping[str, str], notes: Mapping[str, str]
) -> str:
    """Return all sections as one Markdown text."""
    return "\n".join(_markdown(sections, pictures, notes)) + "\n"


def _markdown(
    sections: Sequence[ResultSection], pictures: Mapping[str, str], notes: Mapping[str, str]
) -> Iterator[str]:
    yield "# Results: the paper, reproduced\n"
    yield f"{INTRODUCTION}\n"
    if "start" in notes:
        yield f"{notes['start']}\n"
    yield f"## Claims\n\n{RULES}\n"
    yield _table(VERDICTS, [_verdict(v) for one in sections for v in one.verdicts])
    for one in sections:
        name = one.figure.name
        yield f"## {one.figure.title}\n\n`python -m reproduction {name}`\n"
        if name in pictures:
            yield f"![{one.figure.title}]({pictures[name]})\n"
        for table in one.tables:
            yield f"**{table.title}**\n\n{_table(table.head, table.rows)}"
        if not one.tables:
            yield "There is no finished run yet.\n"
        if one.unfinished:
            yield f"{UNFINISHED}: {'; '.join(one.unfinished)}.\n"
        if name in notes:
            yield f"{notes[name]}\n"


def _verdict(v: SectionVerdict) -> list[str]:
    return [
        v.task,
        v.text,
        f"**{v.verdict}**",
        v.details,
        v.paper,
        f"`{v.folders}`" if v.folders else "none",
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def render_page(
    sections: Sequence[ResultSection], pictures: Mapping[str, Path], notes: Mapping[str, str]
) -> str:
    """Return all sections as one HTML page that needs no other file."""
    from fjord.report import page as style

    css = Path(style.__file__).with_name("page.css").read_text(encoding="utf-8")
    return "\n".join(_page(sections, pictures, notes, css))


def _page(
    sections: Sequence[ResultSection],
    pictures: Mapping[str, Path],
    notes: Mapping[str, str],
    css: str,
) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>The paper, reproduced · FjORD</title>\n<style>\n{css}"
    yield "img { max-width: 100%; }\ntable { overflow-wrap: normal; }\n</style>\n</head>"
    yield f"<body>\n<h1>The paper, reproduced</h1>\n{_paragraphs(INTRODUCTION)}{_paragraphs(notes.get('start', ''))}"
    yield f"<h2>Claims</h2><p class='note'>{escape(RULES.replace('*', ''))}</p>"
    yield _html(
        VERDICTS, [[c.strip("*`") for c in _verdict(v)] for one in sections for v in one.verdicts]
    )
    for one in sections:
        yield f"<h2 id='{one.figure.name}'>{escape(one.figure.title)}</h2>"
        if one.figure.name in pictures:
            data = base64.b64encode(pictures[one.figure.name].read_bytes()).decode()
            yield f"<img alt='{escape(one.figure.title)}' src='data:image/png;base64,{data}'>"
        for table in one.tables:
            yield f"<h3>{escape(table.title)}</h3>{_html(table.head, table.rows)}"
        if not one.tables:
            yield "<p class='note'>There is no finished run yet.</p>"
        if one.unfinished:
            yield f"<p class='note'>{UNFINISHED}: {escape('; '.join(one.unfinished))}.</p>"
        if one.figure.name in notes:
            yield _paragraphs(notes[one.figure.name])
    yield "</body>\n</html>\n"


def _paragraphs(text: str) -> str:
    r"""Return what people wrote in Markdown, its paragraphs and the items of its lists one by one.

    >>> _paragraphs("So far: `a < b`.\n\n- one\n- **two**")
    '<p>So far: a &lt; b.</p><p>- one</p><p>- two</p>'
    """
    parts = re.split(r"\n\s*\n|\n(?=- )", re.sub(r"[*`]", "", text))
    return "".join(f"<p>{escape(part)}</p>" for part in parts if part)


def _html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    lines = []
    for row in rows:
        cells = "".join(
            f'<td data-label="{escape(head[j])}">{escape(c)}</td>' for j, c in enumerate(row) if j
        )
        lines.append(f"<tr><th scope='row'>{escape(row[0])}</th>{cells}</tr>")
    return f"<div class='wide'><table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
