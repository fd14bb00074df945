"""What a person sees while a run goes on, and the table at its end."""

import time
from collections import Counter
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fjord.core.width import Width, parse_width
from fjord.experiments.experiment import Experiment
from fjord.experiments.runs import RunFolder
from fjord.federated.rounds import RoundRecord
from fjord.report import cost_to_score as reach
from fjord.report.groups import ReportRun
from fjord.report.numbers import drop_reason
from fjord.training.evaluate import Score

MAKING = "making model and data ..."


class RunDisplay:
    """A live view of a run on a terminal; a line now and then elsewhere."""

    def __init__(self, experiment: Experiment, console: Console) -> None:
        self.metric, self.console = experiment.metric, console
        self.title = f"{experiment.name}: {experiment.find_method().name}, seed {experiment.seed}"
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task("rounds", total=None)
        self.losses: list[float] = []
        self.scores: dict[Width, Score] = {}
        self.live = Live(self.render(), console=console, refresh_per_second=4, transient=True)
        self.said = time.monotonic()

    def __enter__(self) -> Self:
        """Begin."""
        if self.console.is_terminal:
            self.live.start()
        else:
            self.console.print(f"{self.title}: {MAKING}", markup=False, soft_wrap=True)
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        if self.console.is_terminal:
            self.live.stop()

    def on_round(self, record: RoundRecord, done: int, total: int) -> None:
        """Show one round."""
        self.losses = [*self.losses[-9:], record.loss]
        self.scores |= record.scores
        self.progress.update(self.task, completed=done, total=total)
        if self.console.is_terminal:
            self.live.update(self.render())
        elif record.scores and (time.monotonic() - self.said > 5 or done == total):
            self.said = time.monotonic()
            scores = "  ".join(f"{width}: {value}" for width, value in self.shown().items())
            self.console.print(
                f"round {done}/{total}  loss {self.loss():.3f}  {scores}", soft_wrap=True
            )

    def loss(self) -> float:
        """Return the training loss over the last rounds."""
        known = [loss for loss in self.losses if loss == loss]
        return sum(known) / len(known) if known else float("nan")

    def shown(self) -> dict[Width, str]:
        """Return the last score at each width."""
        return {
            width: format_score(getattr(score, self.metric), self.metric)
            for width, score in self.scores.items()
        }

    def render(self) -> Group:
        """Return what is shown now."""
        if not self.losses:
            return Group(f"{self.title}: {MAKING}")
        table = Table(
            "loss (10 rounds)",
            *(f"{self.metric} at {width}" for width in self.scores),
            title=self.title,
        )
        table.add_row(f"{self.loss():.3f}", *self.shown().values())
        return Group(self.progress, table)


def format_score(value: float, metric: str) -> str:
    """Return a score as people read it."""
    return f"{value:.1%}" if metric == "accuracy" else f"{value:.3f}"


def run_warnings(run: RunFolder) -> list[str]:
    """Say what went wrong without ending the run: updates dropped or reduced, rounds in which nobody trained."""
    rows, found = run.metrics(), []
    dropped = Counter(drop_reason(why) for row in rows for why in row["dropped"].values())
    if dropped:
        why, times = dropped.most_common(1)[0]
        found.append(
            f"Warning: {dropped.total()} updates were dropped, most often ({times} times): {why}."
        )
    reduced = Counter(why for row in rows for why in row.get("reduced", {}).values())
    if reduced:
        why, times = reduced.most_common(1)[0]
        found.append(
            f"Note: {reduced.total()} updates hold less than was sent, most often ({times} times) {why}."
        )
    idle = sum(row["examples"] == 0 for row in rows)
    if idle:
        found.append(f"Warning: in {idle} of {len(rows)} rounds no client trained anything.")
    return found


def results_table(run: RunFolder) -> Table:
    """Return the last score at every width, and what it took to reach one that all widths have."""
    config, read = run.config, ReportRun.read(run)
    metric, costs = config["metric"], _costs(read)
    finals = {w: s for row in read.rows if row["scores"] for w, s in row["scores"].items()}
    table = Table(
        "width", metric, "test loss", *costs, title=f"{config['name']}: {config['method']}"
    )
    for width in sorted(finals, key=parse_width):
        cells = [column.get(parse_width(width), "-") for column in costs.values()]
        table.add_row(
            width,
            format_score(finals[width][metric], metric),
            f"{finals[width]['loss']:.3f}",
            *cells,
        )
    return table


def _costs(run: ReportRun) -> dict[str, dict[Width, str]]:
    """Return what it took to reach a round score, by the heads of their columns."""
    metric = run.config["metric"]
    level = reach.common_level(run, metric)
    if level is None:
        return {}
    return {
        f"{kind} to {reach.format_level(level, metric)}": {
            width: reach.format_cost(cost, kind)
            for width, cost in reach.cost_to_score(run, metric, level, kind).items()
        }
        for kind in reach.COST_KINDS
        if reach.records_cost(run, kind)
    }


def spending_text(run: RunFolder) -> str:
    """Say what a run spent in all."""
    rows = run.metrics()
    return f"Spent in {len(rows)} rounds: {reach.format_totals(rows)}."
