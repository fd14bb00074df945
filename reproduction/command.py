"""`python -m reproduction fig5`, `python -m reproduction results`: the paper's figures from one command each."""

from pathlib import Path
from typing import Annotated

import typer
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

from fjord.core.errors import UserError
from fjord.data.sources import import_library
from reproduction.curves import RunJob
from reproduction.figures import FIGURES, PaperFigure, all_jobs, check_tasks, find_figures
from reproduction.folders import count_rows, run_state
from reproduction.pack import pack_runs
from reproduction.results import draw_section, make_result, read_notes, render_markdown, render_page
from reproduction.scales import find_scale
from reproduction.sections import ResultSection
from reproduction.sections import ResultTable as Numbers
from reproduction.work import RunQueue, default_workers

out = Console(highlight=False)
SHORTEST_LABEL = 12


class Progressing:
    """Shows the runs that are going on."""

    def __init__(self, runs: Path, total: int) -> None:
        self.runs, self.bars = runs, dict[str, TaskID]()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=out, disable=not out.is_terminal, transient=True)
        self.whole = self.progress.add_task("runs", total=total)

    def begun(self, job: RunJob, how: str) -> None:
        """Show a new run."""
        out.print(f"{job.name}: {how}", markup=False, soft_wrap=True)
        self.bars[job.name] = self.progress.add_task(job.name, total=None)

    def looked(self, job: RunJob) -> None:
        """Show how far a run has come."""
        done, total = count_rows(job, self.runs)
        self.progress.update(self.bars[job.name], completed=done, total=total)

    def ended(self, job: RunJob, failure: str | None) -> None:
        """Show the end of a run."""
        if job.name in self.bars:
            self.progress.remove_task(self.bars.pop(job.name))
        self.progress.advance(self.whole)
        said = "finished" if failure is None else f"failed: {failure}"
        out.print(
            f"{job.name}: {said}", markup=False, soft_wrap=True, style="red" if failure else None
        )


Runs = Annotated[Path, typer.Option(help="Where the runs are kept: RUNS/TASK/CURVE/SEED.")]


def figure_command(
    context: typer.Context,
    scale: Annotated[
        str, typer.Option(help="paper: as its appendix says; laptop: a stated reduction.")
    ] = "laptop",
    seeds: Annotated[
        str | None, typer.Option(help="Such as 0,1,2 (default: as the scale says).")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Such as cifar10,shakespeare (default: as the scale says).")
    ] = None,
    runs: Runs = Path("runs/paper"),
    workers: Annotated[
        int, typer.Option(help="Runs at the same time (default: one for each processor).")
    ] = 0,
    only_report: Annotated[bool, typer.Option(help="Run nothing: draw what there is.")] = False,
) -> None:
    """Run what a figure of the paper is made of, or what is left of it; end with tables and a picture."""
    name = str(context.info_name)
    reproduce_figures(
        name, runs, scale=scale, seeds=seeds, tasks=tasks, workers=workers, only_report=only_report
    )


def reproduce_figures(
    name: str,
    runs: Path,
    *,
    scale: str = "laptop",
    seeds: str | None = None,
    tasks: str | None = None,
    workers: int = 0,
    only_report: bool = False,
) -> None:
    """Run what a figure of the paper is made of, or what is left of it; end with tables and a picture."""
    figures, chosen = find_figures(name), _names(tasks)
    check_tasks(figures, chosen)
    if only_report:
        _demand_folder("--runs", runs)
    jobs = [] if only_report else all_jobs(figures, chosen, find_scale(scale), _seeds(seeds))
    failed = _work(jobs, runs, workers or default_workers()) if jobs else {}
    sections = [_report(figure, runs) for figure in figures]
    if name == "all":
        pictures = {
            one.figure.name: runs / "figures" / f"{one.figure.name}.png" for one in sections
        }
        target = runs / "index.html"
        target.write_text(
            render_page(sections, {k: p for k, p in pictures.items() if p.exists()}, {}),
            encoding="utf-8",
        )
        out.print(f"Page: {target}", markup=False, soft_wrap=True)
    for run, why in failed.items():
        out.print(f"Failed: {run}: {why}", markup=False, soft_wrap=True, style="red")
    if failed:
        raise typer.Exit(1)


def _work(jobs: list[RunJob], runs: Path, workers: int) -> dict[str, str]:
    states = [run_state(job, runs) for job in jobs]
    counts = ", ".join(
        f"{states.count(kind)} {kind}" for kind in ("finished", "unfinished", "missing")
    )
    out.print(f"{len(jobs)} runs in {runs}: {counts}", markup=False, soft_wrap=True)
    left = len(jobs) - states.count("finished")
    if left and any(job.recipe != "theorem1" for job in jobs):
        import_library("datasets")  # said once, not by each run
    watcher = Progressing(runs, left)
    work = RunQueue(runs, jobs, workers, watcher)
    try:
        with watcher.progress:
            work.run()
    except KeyboardInterrupt:
        out.print("Stopped. The same command goes on from here.")
        raise typer.Exit(130) from None
    return work.failed


def _report(figure: PaperFigure, runs: Path) -> ResultSection:
    one = make_result(figure, runs)
    for part in one.tables:
        _show(part)
    if not one.tables:
        out.print(
            f"{figure.name}: there is no finished run in {runs}", markup=False, soft_wrap=True
        )
    for v in one.verdicts:
        out.print(f"{v.task}: {v.text}: {v.verdict} ({v.details})", markup=False, soft_wrap=True)
    for text in one.unfinished:
        out.print(f"Unfinished: {text}", markup=False, soft_wrap=True, style="yellow")
    picture = draw_section(one, runs, runs / "figures")
    written = [str(runs / "figures" / f"{figure.name}.json"), *([str(picture)] if picture else [])]
    out.print(f"Written: {', '.join(written)}", markup=False, soft_wrap=True)
    return one


def _show(part: Numbers) -> None:
    """Print a table, its run folders below it: beside the numbers they would leave these no room."""
    label, *numbers = (list(column) for column in zip(part.head, *part.rows, strict=True))
    folders = numbers.pop()[1:]
    room = sum(max(map(len, column)) + 3 for column in numbers) + SHORTEST_LABEL <= out.width
    table = Table(Column(label[0], overflow="fold"), title=part.title)
    for column in numbers:
        table.add_column(column[0], justify="right", no_wrap=room)
    for row in part.rows:
        table.add_row(*row[:-1])
    out.print(table)
    out.print(f"Runs: {'; '.join(dict.fromkeys(folders))}", markup=False, soft_wrap=True)


def write_results(
    runs: Annotated[Path, typer.Argument(help="A folder of runs of the paper's figures.")] = Path(
        "runs/paper"
    ),
    output: Annotated[
        Path, typer.Option(help="The file to write; runs are copied beside it.")
    ] = Path("RESULTS.md"),
    notes: Annotated[
        Path | None, typer.Option(help="What you have to say (default: notes.md beside them).")
    ] = None,
) -> None:
    """Copy what is done of the runs, without weights, into results/ beside RESULTS.md, and write that file from it."""
    _demand_folder("RUNS", runs)
    kept = output.parent / "results"
    if runs.resolve() != kept.resolve():
        size, left = pack_runs(runs, kept)
        out.print(f"Runs: {kept}, {size / 1e6:.2f} MB", markup=False, soft_wrap=True)
        for text in left:
            out.print(f"Left as it is: {text}", markup=False, soft_wrap=True, style="yellow")
    sections = [make_result(figure, kept) for figure in FIGURES.values()]
    drawn = {one.figure.name: draw_section(one, kept, kept / "figures") for one in sections}
    pictures = {name: path for name, path in drawn.items() if path}
    said = read_notes(notes or kept / "notes.md")
    links = {name: path.relative_to(output.parent).as_posix() for name, path in pictures.items()}
    output.write_text(render_markdown(sections, links, said), encoding="utf-8")
    (kept / "index.html").write_text(render_page(sections, pictures, said), encoding="utf-8")
    out.print(f"Written: {output}, {kept / 'index.html'}", markup=False, soft_wrap=True)


def _demand_folder(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{name} {folder}: there is no such folder")


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(part for part in text.split(",") if part) if text is not None else None


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not all(part.isdigit() for part in text.split(",")):
        raise UserError(f"--seeds {text}: whole numbers are needed, such as 0,1,2")
    return tuple(int(part) for part in text.split(","))
