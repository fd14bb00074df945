"""What a person sees while runs go on, and the tables at the end."""

from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from reproduction.curves import RunJob
from reproduction.folders import count_rows
from reproduction.sections import ResultTable

MIN_LABEL = 12
"""Columns that the label of a row needs at least."""
out = Console(highlight=False)


def print_line(text: str, style: str | None = None) -> None:
    """Print a line as it is, however long."""
    out.print(text, markup=False, soft_wrap=True, style=style)


class RunProgress:
    """A progress bar for each run that is going on, and one for all."""

    def __init__(self, runs: Path, total: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.runs = runs
        self.bars: dict[str, TaskID] = {}
        self.progress = Progress(*columns, console=out, disable=not out.is_terminal, transient=True)
        self.all_runs = self.progress.add_task("runs", total=total)

    def on_start(self, job: RunJob, how: str) -> None:
        """Show a new run."""
        print_line(f"{job.name}: {how}")
        self.bars[job.name] = self.progress.add_task(job.name, total=None)

    def on_poll(self, job: RunJob) -> None:
        """Show how far a run has come."""
        done, total = count_rows(job, self.runs)
        self.progress.update(self.bars[job.name], completed=done, total=total)

    def on_end(self, job: RunJob, failure: str | None) -> None:
        """Show the end of a run."""
        if job.name in self.bars:
            self.progress.remove_task(self.bars.pop(job.name))
        self.progress.advance(self.all_runs)
        if failure is None:
            print_line(f"{job.name}: finished")
        else:
            print_line(f"{job.name}: failed: {failure}", style="red")


def print_table(table: ResultTable) -> None:
    """Print a table and then its run folders, which would leave the numbers no room beside them."""
    columns = list(zip(table.head, *table.rows, strict=True))
    label = columns[0][0]
    number_columns = columns[1:-1]
    folders = columns[-1][1:]
    width = MIN_LABEL
    for column in number_columns:
        width += max(len(cell) for cell in column) + 3
    printed = Table(Column(label, overflow="fold"), title=table.title)
    for column in number_columns:
        printed.add_column(column[0], justify="right", no_wrap=width <= out.width)
    for row in table.rows:
        printed.add_row(*row[:-1])
    out.print(printed)
    print_line(f"Runs: {'; '.join(dict.fromkeys(folders))}")
