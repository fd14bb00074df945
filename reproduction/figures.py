"""The figures and tables of the paper: which curves and tasks each is made of."""

from dataclasses import dataclass

from fjord.core.errors import UserError
from fjord.report.figures import CurveStyle, group_styles
from reproduction.curves import (
    CURVES,
    TASKS,
    FigureCurve,
    PaperTask,
    RunJob,
    run_job,
    scaled_task,
)
from reproduction.scales import RunScale

SVD_SEEDS = (0, 1, 2)
SMALL = ("femnist", "shakespeare")
SKEWS = ("emnist-iid", "emnist-skewed", "emnist-dirichlet-0.1")
ALL_SKEWS = (*SKEWS, "cifar10", "cifar10-dirichlet-0.5", "cifar10-dirichlet-0.1")


@dataclass(frozen=True)
class PaperFigure:
    """A figure or table of the paper."""

    name: str
    title: str
    curves: tuple[str, ...] = ()
    kind: str = "by-width"
    """by-width, by-round, costs (beyond the paper), svd or table1b."""
    tasks: tuple[str, ...] = ()
    """The tasks it is drawn for; none: those that stand for its columns."""
    default: tuple[str, ...] = ()
    """The tasks that are run if none are named; none: those of the scale."""
    columns: tuple[str, ...] = ("cifar10", "femnist", "shakespeare")
    """The paper's tasks that it shows."""

    def find_curves(self) -> list[FigureCurve]:
        """Return the curves."""
        return [CURVES[name] for name in self.curves]

    def curve_styles(self) -> dict[str, CurveStyle]:
        """Return how each curve is drawn: the same on every task, also where others are missing."""
        return dict(zip(self.curves, group_styles(len(self.curves)), strict=True))

    def possible_tasks(self) -> list[PaperTask]:
        """Return the tasks it can be drawn for."""
        if self.tasks:
            return [TASKS[name] for name in self.tasks]
        central = any(CURVES[name].central for name in self.curves if name in CURVES)
        possible = []
        for task in TASKS.values():
            if task.column in self.columns and (task.central or not central):
                possible.append(task)
        return possible

    def selected_tasks(self, wanted: tuple[str, ...] | None, scale: RunScale) -> list[PaperTask]:
        """Return the tasks to run."""
        names = wanted or self.default or scale.tasks
        return [task for task in self.possible_tasks() if task.name in names]

    def run_jobs(
        self, wanted: tuple[str, ...] | None, scale: RunScale, seeds: tuple[int, ...] | None
    ) -> list[RunJob]:
        """Return the runs it is made of."""
        if self.kind == "svd":
            return self._svd_jobs(seeds or SVD_SEEDS)
        jobs = []
        for task in self.selected_tasks(wanted, scale):
            for curve in self.find_curves():
                own_seeds = seeds or scale.reduction_for(scaled_task(task, curve)).seeds
                for seed in own_seeds:
                    jobs.append(run_job(task, curve, scale, seed))
        return jobs

    def _svd_jobs(self, seeds: tuple[int, ...]) -> list[RunJob]:
        jobs = []
        for seed in seeds:
            for name in self.curves:
                jobs.append(RunJob(f"theorem1/{name}", f"theorem1.{name}", (), seed))
        return jobs


PAPER_FIGURES = (
    PaperFigure("table1b", "Table 1b: MACs and parameters at each width", kind="table1b"),
    PaperFigure(
        "fig3",
        "Fig. 3 and its extended form: centralised training",
        ("od", "od-kd", "single", "random"),
    ),
    PaperFigure(
        "fig4",
        "Fig. 4: FjORD with KD against eFD and FjORD with eFD",
        ("fjord-kd", "efd", "fjord-efd"),
    ),
    PaperFigure(
        "fig5", "Fig. 5: FjORD with and without knowledge distillation", ("fjord", "fjord-kd")
    ),
    PaperFigure(
        "fig6",
        "Fig. 6: five and ten clusters of devices",
        ("fjord-kd", "fjord-kd-u10"),
        columns=SMALL,
    ),
    PaperFigure(
        "fig7", "Fig. 7: drop scale 1 and 0.5", ("fjord-kd", "fjord-kd-ds05"), columns=SMALL
    ),
    PaperFigure(
        "svd", "Ordered Dropout recovers the SVD (Theorem 1)", ("paper", "decaying"), "svd"
    ),
    PaperFigure(
        "convergence",
        "Convergence of FjORD and eFD at full width",
        ("fjord", "fjord-kd", "efd"),
        "by-round",
    ),
    PaperFigure("fd-efd", "Federated Dropout against its extended form", ("fd", "efd")),
    PaperFigure(
        "fig3-step",
        "Fig. 3, with a tenth of the learning rate",
        ("od-step", "od-kd-step", "single-step"),
        tasks=("emnist-skewed",),
        default=("emnist-skewed",),
    ),
    PaperFigure(
        "efd-mean",
        "Fig. 4, if eFD's server averaged over all clients",
        ("fjord-kd", "efd", "efd-all"),
        tasks=("emnist-skewed",),
        default=("emnist-skewed",),
    ),
    PaperFigure(
        "beyond",
        "Beyond the paper: other methods with the same seeds, by label skew",
        (
            "fjord",
            "fjord-kd",
            "heterofl",
            "fedrolex",
            "exclusive-small",
            "drop-low-tier",
            "fedavg",
        ),
        "costs",
        ALL_SKEWS,
        SKEWS,
    ),
)
FIGURES: dict[str, PaperFigure] = {figure.name: figure for figure in PAPER_FIGURES}


def find_figures(name: str) -> list[PaperFigure]:
    """Return a figure by name, or all of them."""
    if name == "all":
        return list(FIGURES.values())
    if name not in FIGURES:
        raise UserError(f"{name!r} is not one of: {', '.join(FIGURES)}, all")
    return [FIGURES[name]]


def check_tasks(figures: list[PaperFigure], wanted: tuple[str, ...] | None) -> None:
    """Refuse tasks that no figure has."""
    known = dict.fromkeys(task.name for figure in figures for task in figure.possible_tasks())
    for name in wanted or ():
        if name not in known:
            raise UserError(f"must be one of: {', '.join(known)}", field="tasks", value=name)


def all_jobs(
    figures: list[PaperFigure],
    wanted: tuple[str, ...] | None,
    scale: RunScale,
    seeds: tuple[int, ...] | None,
) -> list[RunJob]:
    """Return the runs of some figures, each once; the first seed of all comes first."""
    jobs: dict[RunJob, None] = {}
    for figure in figures:
        jobs |= dict.fromkeys(figure.run_jobs(wanted, scale, seeds))
    return sorted(jobs, key=lambda job: job.seed)
