"""`python -m reproduction fig5` runs a figure; `python -m reproduction results` writes results."""

from pathlib import Path
from typing import Annotated

import typer

from fjord.core.errors import UserError
from fjord.data.sources import import_library
from reproduction import theorem1
from reproduction.curves import RunJob
from reproduction.figures import FIGURES, PaperFigure, all_jobs, check_tasks, find_figures
from reproduction.folders import STATES, run_state
from reproduction.pack import pack_runs
from reproduction.progress import RunProgress, out, print_line, print_table
from reproduction.results import (
    FigureResult,
    draw_section,
    make_result,
    read_notes,
    render_markdown,
    render_page,
)
from reproduction.scales import find_scale
from reproduction.work import RunQueue, default_workers

Runs = Annotated[Path, typer.Option(help="The folder of runs: RUNS/TASK/CURVE/SEED.")]
Scale = Annotated[
    str, typer.Option(help="paper: as in its appendix; laptop: a documented reduction.")
]
Seeds = Annotated[str | None, typer.Option(help="Such as 0,1,2 (default: those of the scale).")]
Tasks = Annotated[
    str | None, typer.Option(help="Such as cifar10,shakespeare (default: those of the scale).")
]
Workers = Annotated[
    int, typer.Option(help="Runs at the same time (default: one for each processor).")
]
OnlyReport = Annotated[bool, typer.Option(help="Run nothing: draw the runs that are there.")]


def figure_command(
    context: typer.Context,
    scale: Scale = "laptop",
    seeds: Seeds = None,
    tasks: Tasks = None,
    runs: Runs = Path("runs/paper"),
    workers: Workers = 0,
    only_report: OnlyReport = False,
) -> None:
    """Run a figure of the paper, or what is left of it; end with tables and a picture."""
    reproduce_figures(
        str(context.info_name),
        runs,
        scale=scale,
        seeds=seeds,
        tasks=tasks,
        workers=workers,
        only_report=only_report,
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
    """Run one figure, or `all`; end with tables, verdicts and pictures."""
    figures = find_figures(name)
    selected = _parse_names(tasks)
    check_tasks(figures, selected)
    failed: dict[str, str] = {}
    if only_report:
        _check_folder(runs)
    else:
        jobs = all_jobs(figures, selected, find_scale(scale), _parse_seeds(seeds))
        failed = _run_jobs(jobs, runs, workers or default_workers())
    results = [_report_figure(figure, runs) for figure in figures]
    if name == "all":
        page = runs / "index.html"
        page.write_text(render_page(results, ""), encoding="utf-8")
        print_line(f"Page: {page}")
    for run, failure in failed.items():
        print_line(f"Failed: {run}: {failure}", style="red")
    if failed:
        raise typer.Exit(1)


def _run_jobs(jobs: list[RunJob], runs: Path, workers: int) -> dict[str, str]:
    """Run what is not finished; return what failed, and why."""
    if not jobs:
        return {}
    states = [run_state(job, runs) for job in jobs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES)
    print_line(f"{len(jobs)} runs in {runs}: {counts}")
    left = len(jobs) - states.count("finished")
    if left and any(job.recipe not in theorem1.RECIPES for job in jobs):
        import_library("datasets")  # if it is missing, that is said once and not by each run
    progress = RunProgress(runs, left)
    queue = RunQueue(runs, jobs, workers, progress)
    try:
        with progress.progress:
            queue.run()
    except KeyboardInterrupt:
        out.print("Stopped. The same command resumes the runs.")
        raise typer.Exit(130) from None
    return queue.failed


def _report_figure(figure: PaperFigure, runs: Path) -> FigureResult:
    """Print the tables and verdicts of a figure, and draw it."""
    section = make_result(figure, runs)
    for table in section.tables:
        print_table(table)
    if not section.tables:
        print_line(f"{figure.name}: there is no finished run in {runs}")
    for one in section.verdicts:
        print_line(f"{one.task}: {one.text}: {one.verdict} ({one.details})")
    for text in section.unfinished:
        print_line(f"Unfinished: {text}", style="yellow")
    folder = runs / "figures"
    picture = draw_section(section, runs, folder)
    written = [str(folder / f"{figure.name}.json")]
    if picture:
        written.append(str(picture))
    print_line(f"Written: {', '.join(written)}")
    return FigureResult(section, picture, "")


def write_results(
    runs: Annotated[Path, typer.Argument(help="A folder of runs of the paper's figures.")] = Path(
        "runs/paper"
    ),
    output: Annotated[
        Path, typer.Option(help="The file to write; runs are copied to results/ beside it.")
    ] = Path("RESULTS.md"),
    notes: Annotated[
        Path | None, typer.Option(help="Notes to include (default: results/notes.md).")
    ] = None,
) -> None:
    """Copy finished runs without weights to results/, and write RESULTS.md from them."""
    _check_folder(runs)
    kept = output.parent / "results"
    if runs.resolve() != kept.resolve():
        size, skipped = pack_runs(runs, kept)
        print_line(f"Runs: {kept}, {size / 1e6:.2f} MB")
        for text in skipped:
            print_line(f"Not replaced: {text}", style="yellow")
    written_notes = read_notes(notes or kept / "notes.md")
    results = []
    for figure in FIGURES.values():
        section = make_result(figure, kept)
        picture = draw_section(section, kept, kept / "figures")
        results.append(FigureResult(section, picture, written_notes.get(figure.name, "")))
    start = written_notes.get("start", "")
    output.write_text(render_markdown(results, start, output.parent), encoding="utf-8")
    page = kept / "index.html"
    page.write_text(render_page(results, start), encoding="utf-8")
    print_line(f"Written: {output}, {page}")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError("is not a folder", field="runs", value=folder)


def _parse_names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part for part in text.split(",") if part)


def _parse_seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isdigit() for part in parts):
        raise UserError("must be whole numbers such as 0,1,2", field="seeds", value=text)
    return tuple(int(part) for part in parts)
