"""The section of a figure, made from run folders: panels, tables with their folders, verdicts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fjord.report.cards import format_three_digits
from fjord.report.figures import AxesLabels, CurveStyle, PlotSeries
from fjord.report.groups import ReportRun, join_words, run_commits
from fjord.report.numbers import SeedStat
from fjord.report.panels import FigurePanel
from reproduction.claims import FULL, PaperClaim, decide_claim
from reproduction.costs import COST_FIELDS, MatchedCost, match_costs
from reproduction.curves import PaperTask
from reproduction.figures import PaperFigure
from reproduction.measured import MeasuredCurve, measure_curve, seed_stats
from reproduction.paper_claims import CLAIMS

NONE = "\N{EN DASH}"
TaskCurves = dict[PaperTask, list[MeasuredCurve]]


@dataclass(frozen=True)
class ResultTable:
    """Numbers; the last column names the run folders that each row is made of."""

    title: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class SectionVerdict:
    """What the runs of one task say about a claim."""

    claim: str
    text: str
    task: str
    paper: str
    verdict: str
    details: str
    folders: str


@dataclass(frozen=True)
class ResultSection:
    """All results of a figure."""

    figure: PaperFigure
    measured: tuple[MeasuredCurve, ...] = ()
    tables: tuple[ResultTable, ...] = ()
    verdicts: tuple[SectionVerdict, ...] = ()
    panels: tuple[FigurePanel, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The recipes, seeds and commits it was made from."""
        recipes: list[str] = []
        seeds: set[int] = set()
        runs: list[ReportRun] = []
        for one in self.measured:
            recipes.append(one.task.central if one.curve.central else one.task.recipe)
            seeds.update(one.runs)
            runs += one.runs.values()
        names = join_words(recipes)
        return f"recipe {names} · seeds {join_words(sorted(seeds))} · commit {run_commits(runs)}"


def make_section(figure: PaperFigure, runs: Path) -> ResultSection:
    """Make the section of a figure from the runs there are."""
    curves, unfinished = _read_curves(figure, runs)
    make_panel = loss_panel if figure.kind == "by-round" else width_panel
    styles = figure.curve_styles()
    measured: list[MeasuredCurve] = []
    tables: list[ResultTable] = []
    panels: list[FigurePanel] = []
    for task, own in curves.items():
        measured += own
        tables += _make_tables(figure, task, own)
        panels.append(make_panel(task, own, styles))
    verdicts = tuple(_decide_claims(figure, curves))
    return ResultSection(
        figure, tuple(measured), tuple(tables), verdicts, tuple(panels), tuple(unfinished)
    )


def _read_curves(figure: PaperFigure, runs: Path) -> tuple[TaskCurves, list[str]]:
    """Return the curves that have runs, by task, and how far unfinished runs are."""
    curves: TaskCurves = {}
    unfinished: list[str] = []
    for task in figure.possible_tasks():
        measured: list[MeasuredCurve] = []
        for curve in figure.find_curves():
            one, left = measure_curve(task, curve, runs)
            unfinished += left
            if one and _can_be_shown(figure, one):
                measured.append(one)
        needed = len(figure.curves) if task.probe else 1
        if len(measured) >= needed:
            curves[task] = measured
    return curves, unfinished


def _can_be_shown(figure: PaperFigure, one: MeasuredCurve) -> bool:
    """Say whether a curve has the model that a figure shows; the full one may still be missing."""
    return figure.kind != "by-round" or FULL in one.points


def _decide_claims(figure: PaperFigure, curves: TaskCurves) -> Iterator[SectionVerdict]:
    """Yield what the runs say about each claim of a figure, task by task."""
    for claim in CLAIMS:
        if claim.figure != figure.name:
            continue
        for task, measured in curves.items():
            # The number that was reported elsewhere is for skewed clients.
            is_even = task.name.endswith(("iid", "cifar10"))
            if figure.name != "beyond" or not is_even:
                yield _section_verdict(claim, task, measured)


def _section_verdict(
    claim: PaperClaim, task: PaperTask, measured: list[MeasuredCurve]
) -> SectionVerdict:
    curves = {one.curve.name: one for one in measured if one.curve.name in claim.curves}
    decided = decide_claim(claim, curves)
    return SectionVerdict(
        claim=claim.name,
        text=claim.text,
        task=task.name,
        paper=claim.paper.get(task.column, NONE),
        verdict=decided.verdict,
        details=decided.details,
        folders=", ".join(dict.fromkeys(one.folders for one in curves.values())),
    )


def width_panel(
    task: PaperTask, measured: list[MeasuredCurve], styles: Mapping[str, CurveStyle]
) -> FigurePanel:
    """Return scores against width."""
    series = []
    for one in measured:
        series.append(PlotSeries(_curve_label(one), styles[one.curve.name], one.stats))
    widths = sorted({width for one in series for width in one.points})
    ticks = {width: f"{float(width):g}" for width in widths}
    axes = AxesLabels("width p", point_unit(measured[0]), "{:.4g}".format)
    return FigurePanel(_task_title(task, measured), tuple(series), axes, ticks)


def loss_panel(
    task: PaperTask, measured: list[MeasuredCurve], styles: Mapping[str, CurveStyle]
) -> FigurePanel:
    """Return the test loss at full width against rounds."""
    series = []
    for one in measured:
        losses = seed_stats(one.curve_at(FULL))
        if losses:
            series.append(PlotSeries(_curve_label(one), styles[one.curve.name], losses))
    axes = AxesLabels("rounds", "test loss at full width", format_three_digits)
    return FigurePanel(_task_title(task, measured), tuple(series), axes)


def _task_title(task: PaperTask, measured: list[MeasuredCurve]) -> str:
    rounds = join_words(one.rounds for one in measured)
    noun = "epochs" if measured[0].curve.central else "rounds"
    return f"{task.title} ({rounds} {noun})"


def _curve_label(one: MeasuredCurve) -> str:
    return f"{one.curve.label} (n={one.seed_count})"


def point_unit(one: MeasuredCurve) -> str:
    """Return what the points of a curve are."""
    return "accuracy (%)" if one.metric == "accuracy" else "negative perplexity"


def _make_tables(
    figure: PaperFigure, task: PaperTask, measured: list[MeasuredCurve]
) -> list[ResultTable]:
    """Return the numbers of one task."""
    if figure.kind == "by-round":
        return [_loss_table(task, measured)]
    tables = [_width_table(task, measured)]
    if figure.kind == "costs":
        tables.append(_cost_table(task, match_costs(measured)))
    return tables


def _width_table(task: PaperTask, measured: list[MeasuredCurve]) -> ResultTable:
    widths = sorted({width for one in measured for width in one.stats})
    rows = []
    for one in measured:
        stats = one.stats
        cells = [format_value(stats.get(width)) for width in widths]
        rows.append([one.curve.label, one.seed_count, *cells, one.folders])
    title = f"{_task_title(task, measured)}: {point_unit(measured[0])}"
    head = ["", "seeds", *(f"p = {width}" for width in widths), "runs"]
    return ResultTable(title, head, rows)


def _loss_table(task: PaperTask, measured: list[MeasuredCurve]) -> ResultTable:
    rows = []
    for one in measured:
        losses = seed_stats(one.curve_at(FULL))
        marks = [_nearest(losses, share * one.rounds) for share in (0.25, 0.5, 1)]
        cells = [format_value(losses[mark], 3) for mark in marks]
        rows.append([one.curve.label, str(losses[marks[-1]].count), *cells, one.folders])
    head = ["", "seeds", "after 1/4 of the rounds", "after 1/2", "at the end", "runs"]
    return ResultTable(f"{_task_title(task, measured)}: test loss at full width", head, rows)


def _nearest(rounds: Iterable[int], wanted: float) -> int:
    """Return the round that is nearest to a wanted one."""
    return min(rounds, key=lambda done: abs(done - wanted))


def _cost_table(task: PaperTask, matched: list[MatchedCost]) -> ResultTable:
    rows = []
    for one in matched:
        macs = f"{one.total['MACs'] / 1e9:,.1f} G"
        sent = f"{one.total['bytes'] / 1e6:,.1f} MB"
        scores = [format_value(one.final)]
        scores += [format_value(one.at_equal[kind]) for kind in COST_FIELDS]
        name = one.measured.curve.label
        rows.append([name, str(one.width), macs, sent, *scores, one.measured.folders])
    title = f"{task.title}: the widest model of each method at equal cost, all clients together"
    costs = ["its widest model", "MACs spent", "bytes sent"]
    head = ["", *costs, "at the end", "at equal MACs", "at equal bytes", "runs"]
    return ResultTable(title, head, rows)


def format_value(value: SeedStat | None, digits: int = 2) -> str:
    """Return mean and deviation as people read them.

    >>> format_value(SeedStat(1.5, 0.25, 3)), format_value(SeedStat(1.5, None, 1), digits=1)
    ('1.50 ± 0.25', '1.5')
    """
    if value is None:
        return NONE
    text = f"{value.mean:.{digits}f}"
    if value.sd is not None:
        text += f" ± {value.sd:.{digits}f}"
    return text
