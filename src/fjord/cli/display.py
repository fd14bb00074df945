"""What a person sees while a run goes on, and the table at its end."""

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fjord.cli.tables import print_line
from fjord.core.width import Width, parse_width
from fjord.experiments.experiment import Experiment
from fjord.experiments.runs import RunFolder
from fjord.federated.records import RoundRecord
from fjord.report import cost_to_score as costs
from fjord.report.groups import ReportRun
from fjord.report.numbers import drop_reason
from fjord.training.evaluate import Score

STARTING = "making model and data ..."
RECENT_ROUNDS = 10
"""The shown loss is a mean over so many rounds."""
LINE_SECONDS = 5
"""Where there is no terminal, a line is printed at most this often."""


@contextmanager
def resume_hint(folder: Path) -> Iterator[None]:
    """End a run that is interrupted by Ctrl-C with the command that resumes it."""
    try:
        yield
    except KeyboardInterrupt:
        hint = "Nothing was begun."
        if (folder / "config.json").exists():
            hint = f"Go on with: fjord run --resume {shlex.quote(str(folder))}"
        print_line(f"Stopped. {hint}")
        raise typer.Exit(130) from None


class RunDisplay:
    """A live view of a run on a terminal; a line now and then elsewhere."""

    def __init__(self, experiment: Experiment, console: Console) -> None:
        self.metric = experiment.metric
        self.console = console
        self.title = f"{experiment.name}: {experiment.find_method().name}, seed {experiment.seed}"
        self.progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.progress_bar = self.progress.add_task("rounds", total=None)
        self.losses: list[float] = []
        self.scores: dict[Width, Score] = {}
        self.live = Live(self.render(), console=console, refresh_per_second=4, transient=True)
        self.line_time = time.monotonic()

    def __enter__(self) -> Self:
        """Begin."""
        if self.console.is_terminal:
            self.live.start()
        else:
            self.console.print(f"{self.title}: {STARTING}", markup=False, soft_wrap=True)
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        if self.console.is_terminal:
            self.live.stop()

    def on_round(self, record: RoundRecord, done: int, total: int) -> None:
        """Show one round."""
        self.losses = [*self.losses, record.loss][-RECENT_ROUNDS:]
        self.scores |= record.scores
        self.progress.update(self.progress_bar, completed=done, total=total)
        if self.console.is_terminal:
            self.live.update(self.render())
        elif record.scores and (self._is_line_due() or done == total):
            self._print_round(done, total)

    def _is_line_due(self) -> bool:
        return time.monotonic() - self.line_time > LINE_SECONDS

    def _print_round(self, done: int, total: int) -> None:
        self.line_time = time.monotonic()
        words = [f"round {done}/{total}", f"loss {self.recent_loss():.3f}"]
        for width, score in self.format_scores().items():
            words.append(f"{width}: {score}")
        self.console.print("  ".join(words), soft_wrap=True)

    def recent_loss(self) -> float:
        """Return the mean training loss of the last rounds in which somebody trained."""
        numbers = [loss for loss in self.losses if loss == loss]
        if not numbers:
            return float("nan")
        return sum(numbers) / len(numbers)

    def format_scores(self) -> dict[Width, str]:
        """Return the last score at each width."""
        texts = {}
        for width, score in self.scores.items():
            value = getattr(score, self.metric)
            texts[width] = format_score(value, self.metric)
        return texts

    def render(self) -> Group:
        """Return what is shown now."""
        if not self.losses:
            return Group(f"{self.title}: {STARTING}")
        table = Table(f"loss ({RECENT_ROUNDS} rounds)", title=self.title)
        for width in self.scores:
            table.add_column(f"{self.metric} at {width}")
        table.add_row(f"{self.recent_loss():.3f}", *self.format_scores().values())
        return Group(self.progress, table)


def format_score(value: float, metric: str) -> str:
    """Return a score as people read it.

    >>> format_score(0.876, "accuracy"), format_score(3.2, "perplexity")
    ('87.6%', '3.200')
    """
    if metric == "accuracy":
        return f"{value:.1%}"
    return f"{value:.3f}"


def run_warnings(run: RunFolder) -> list[str]:
    """Say what went wrong without ending the run.

    Updates may be dropped or reduced, and rounds may pass in which nobody trained.
    """
    rows = run.metrics()
    warnings = []
    dropped = Counter(map(drop_reason, _row_reasons(rows, "dropped")))
    if dropped:
        reason, times = dropped.most_common(1)[0]
        warnings.append(
            f"Warning: {dropped.total()} updates were dropped, "
            f"most often ({times} times): {reason}."
        )
    reduced = Counter(_row_reasons(rows, "reduced"))
    if reduced:
        reason, times = reduced.most_common(1)[0]
        warnings.append(
            f"Note: {reduced.total()} updates hold less than was sent, "
            f"most often ({times} times) {reason}."
        )
    idle = sum(row["examples"] == 0 for row in rows)
    if idle:
        warnings.append(f"Warning: in {idle} of {len(rows)} rounds no client trained anything.")
    return warnings


def _row_reasons(rows: Iterable[Mapping[str, Any]], key: str) -> Iterator[str]:
    for row in rows:
        yield from row.get(key, {}).values()


def results_table(run: RunFolder) -> Table:
    """Return the last score at every width, and what it took to reach one that all widths have."""
    report_run = ReportRun.read(run)
    config = report_run.config
    metric = config["metric"]
    cost_columns = _cost_columns(report_run)
    table = Table(
        "width", metric, "test loss", *cost_columns, title=f"{config['name']}: {config['method']}"
    )
    last_scores: dict[str, Any] = {}
    for row in report_run.rows:
        last_scores |= row["scores"]
    for text in sorted(last_scores, key=parse_width):
        score = last_scores[text]
        cells = [format_score(score[metric], metric), f"{score['loss']:.3f}"]
        for column in cost_columns.values():
            cells.append(column.get(parse_width(text), "-"))
        table.add_row(text, *cells)
    return table


def _cost_columns(run: ReportRun) -> dict[str, dict[Width, str]]:
    """Return what it took to reach a round score at each width, by the heads of the columns."""
    metric = run.config["metric"]
    level = costs.common_level(run, metric)
    if level is None:
        return {}
    columns = {}
    for kind in costs.COST_KINDS:
        if costs.records_cost(run, kind):
            head = f"{kind} to {costs.format_level(level, metric)}"
            reached = costs.cost_to_score(run, metric, level, kind)
            columns[head] = {w: costs.format_cost(cost, kind) for w, cost in reached.items()}
    return columns


def spending_text(run: RunFolder) -> str:
    """Say what a run spent in all."""
    rows = run.metrics()
    return f"Spent in {len(rows)} rounds: {costs.format_totals(rows)}."
