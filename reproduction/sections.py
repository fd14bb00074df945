"""A figure made from run folders: panels to draw, tables of numbers that name their folders, verdicts on claims."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fjord.core.width import Width
from fjord.report.figures import AxesLabels, CurveStyle, PlotSeries
from fjord.report.groups import join_words, run_commits
from fjord.report.numbers import SeedStat, seed_stat
from fjord.report.panels import FigurePanel
from reproduction.claims import ONE, decide_claim
from reproduction.costs import KINDS, MatchedCost, match_costs
from reproduction.curves import PaperTask
from reproduction.figures import PaperFigure
from reproduction.measured import MeasuredCurve, measure_curve
from reproduction.paper_claims import CLAIMS

NONE = "\N{EN DASH}"


@dataclass(frozen=True)
class ResultTable:
    """Numbers; the last column names the run folders that each row is made of."""

    title: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class SectionVerdict:
    """What the runs of one task say of a claim."""

    claim: str
    text: str
    task: str
    paper: str
    verdict: str
    details: str
    folders: str


@dataclass(frozen=True)
class ResultSection:
    """All there is to say of a figure."""

    figure: PaperFigure
    found: tuple[MeasuredCurve, ...] = ()
    tables: tuple[ResultTable, ...] = ()
    verdicts: tuple[SectionVerdict, ...] = ()
    panels: tuple[FigurePanel, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Where it comes from: recipes, seeds and commits."""
        recipes = join_words(
            one.task.central if one.curve.alone else one.task.recipe for one in self.found
        )
        seeds = join_words(sorted({seed for one in self.found for seed in one.runs}))
        runs = (run for one in self.found for run in one.runs.values())
        return f"recipe {recipes} · seeds {seeds} · commit {run_commits(runs)}"


def make_section(figure: PaperFigure, runs: Path) -> ResultSection:
    """Make the section of a figure from the runs there are."""
    read = {
        task: [measure_curve(task, curve, runs) for curve in figure.lines()]
        for task in figure.candidates()
    }
    parts = {
        task: [one for one, _ in pairs if one and _fits(figure, one)]
        for task, pairs in read.items()
    }
    parts = {
        t: found
        for t, found in parts.items()
        if len(found) >= (len(figure.curves) if t.probe else 1)
    }
    make = by_round if figure.kind == "by-round" else by_width
    return ResultSection(
        figure,
        tuple(one for found in parts.values() for one in found),
        tuple(table for task, found in parts.items() for table in tables(figure, task, found)),
        tuple(verdicts(figure, parts)),
        tuple(make(task, found, figure.styles()) for task, found in parts.items()),
        tuple(text for pairs in read.values() for _, left in pairs for text in left),
    )


def _fits(figure: PaperFigure, one: MeasuredCurve) -> bool:
    """Say whether a curve has what a figure shows: of several models the full one may still be missing."""
    return figure.kind != "by-round" or ONE in one.points


def verdicts(
    figure: PaperFigure, parts: Mapping[PaperTask, list[MeasuredCurve]]
) -> Iterator[SectionVerdict]:
    """Yield what the runs say of each claim of a figure, task by task."""
    for claim in (claim for claim in CLAIMS if claim.figure == figure.name):
        for task, measured in parts.items():
            if figure.name == "beyond" and task.name.endswith(("iid", "cifar10")):
                continue  # what was reported elsewhere is of skewed clients
            found = {one.curve.name: one for one in measured if one.curve.name in claim.curves}
            said, paper = decide_claim(claim, found), claim.paper.get(task.column, NONE)
            folders = ", ".join(dict.fromkeys(one.folders for one in found.values()))
            yield SectionVerdict(
                claim.name, claim.text, task.name, paper, said.verdict, said.details, folders
            )


def by_width(
    task: PaperTask, found: list[MeasuredCurve], styles: Mapping[str, CurveStyle]
) -> FigurePanel:
    """Return performance against width."""
    series = tuple(PlotSeries(_label(one), styles[one.curve.name], one.stats) for one in found)
    widths = sorted({width for one in series for width in one.points})
    ticks = {w: f"{float(w):g}" for w in widths}
    return FigurePanel(
        _title(task, found), series, AxesLabels("width p", unit(found[0]), "{:.4g}".format), ticks
    )


def by_round(
    task: PaperTask, found: list[MeasuredCurve], styles: Mapping[str, CurveStyle]
) -> FigurePanel:
    """Return the test loss at full width against rounds."""
    series = tuple(
        PlotSeries(_label(one), styles[one.curve.name], _stats(one.curve_at(ONE))) for one in found
    )
    axes = AxesLabels("rounds", "test loss at full width", "{:.3g}".format)
    return FigurePanel(_title(task, found), tuple(one for one in series if one.points), axes)


def _stats(values: dict[int, dict[int, float]]) -> dict[int, SeedStat]:
    return {place: one for place, by_seed in values.items() if (one := seed_stat(by_seed.values()))}


def _title(task: PaperTask, found: list[MeasuredCurve]) -> str:
    rounds = join_words(one.rounds for one in found)
    return f"{task.title} ({rounds} {'epochs' if found[0].curve.alone else 'rounds'})"


def _label(one: MeasuredCurve) -> str:
    return f"{one.curve.label} (n={one.count})"


def unit(one: MeasuredCurve) -> str:
    """Return what the points of a curve are."""
    return "accuracy (%)" if one.metric == "accuracy" else "negative perplexity"


def tables(figure: PaperFigure, task: PaperTask, found: list[MeasuredCurve]) -> list[ResultTable]:
    """Return the numbers of one task."""
    made = [_by_width(task, found)]
    if figure.kind == "by-round":
        made = [_by_round(task, found)]
    if figure.kind == "costs":
        made.append(_costs(task, match_costs(found)))
    return made


def _by_width(task: PaperTask, found: list[MeasuredCurve]) -> ResultTable:
    widths: list[Width] = sorted({width for one in found for width in one.stats})
    rows = [
        [one.curve.label, one.count, *(format_value(one.stats.get(w)) for w in widths), one.folders]
        for one in found
    ]
    return ResultTable(
        f"{_title(task, found)}: {unit(found[0])}",
        ["", "seeds", *(f"p = {w}" for w in widths), "runs"],
        rows,
    )


def _by_round(task: PaperTask, found: list[MeasuredCurve]) -> ResultTable:
    rows = []
    for one in found:
        curve = _stats(one.curve_at(ONE))
        marks = [
            min(curve, key=lambda done: abs(done - share * one.rounds)) for share in (0.25, 0.5, 1)
        ]
        count = str(curve[marks[-1]].count)
        rows.append(
            [one.curve.label, count, *(format_value(curve[mark], 3) for mark in marks), one.folders]
        )
    head = ["", "seeds", "after 1/4 of the rounds", "after 1/2", "at the end", "runs"]
    return ResultTable(f"{_title(task, found)}: test loss at full width", head, rows)


def _costs(task: PaperTask, found: list[MatchedCost]) -> ResultTable:
    rows = []
    for one in found:
        spent = [f"{one.total['MACs'] / 1e9:,.1f} G", f"{one.total['bytes'] / 1e6:,.1f} MB"]
        equal = [format_value(one.at_equal[kind]) for kind in KINDS]
        name = one.measured.curve.label
        rows.append(
            [name, str(one.width), *spent, format_value(one.final), *equal, one.measured.folders]
        )
    head = [
        "",
        "its widest model",
        "MACs spent",
        "bytes sent",
        "at the end",
        "at equal MACs",
        "at equal bytes",
        "runs",
    ]
    return ResultTable(
        f"{task.title}: the widest model of each method at equal cost, all clients together",
        head,
        rows,
    )


def format_value(value: SeedStat | None, digits: int = 2) -> str:
    """Return mean and deviation as people read them."""
    if value is None:
        return NONE
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f" ± {value.sd:.{digits}f}")
