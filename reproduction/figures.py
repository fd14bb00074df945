"""Which figure is made of which curves, and what the paper says of it."""

from dataclasses import dataclass

from fjord.core.errors import UserError
from fjord.report.figures import CurveStyle, group_styles
from reproduction.curves import CURVES, TASKS, FigureCurve, PaperTask, RunJob, run_job
from reproduction.scales import RunScale

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
    """Those of them that are run unless told otherwise; none: those of the scale."""
    columns: tuple[str, ...] = ("cifar10", "femnist", "shakespeare")
    """The paper's tasks that it shows."""

    def lines(self) -> list[FigureCurve]:
        """Return the curves."""
        return [CURVES[name] for name in self.curves]

    def styles(self) -> dict[str, CurveStyle]:
        """Return how each curve is drawn: the same on every task, also where others are missing."""
        return dict(zip(self.curves, group_styles(len(self.curves)), strict=True))

    def candidates(self) -> list[PaperTask]:
        """Return the tasks it can be drawn for."""
        alone = any(CURVES[name].alone for name in self.curves if name in CURVES)
        fitting = [
            task
            for task in TASKS.values()
            if task.column in self.columns and (task.central or not alone)
        ]
        return [TASKS[name] for name in self.tasks] or fitting

    def chosen(self, wanted: tuple[str, ...] | None, scale: RunScale) -> list[PaperTask]:
        """Return the tasks to run."""
        names = wanted or self.default or scale.tasks
        return [task for task in self.candidates() if task.name in names]

    def jobs(
        self, wanted: tuple[str, ...] | None, scale: RunScale, seeds: tuple[int, ...] | None
    ) -> list[RunJob]:
        """Return the runs it is made of."""
        if self.kind == "svd":
            own = seeds or (0, 1, 2)
            return [
                RunJob(f"theorem1/{name}", f"theorem1.{name}", (), seed)
                for seed in own
                for name in self.curves
            ]
        found = []
        for task in self.chosen(wanted, scale):
            for curve in self.lines():
                own = seeds or scale.of(task.central if curve.alone else task.name).seeds
                found += [run_job(task, curve, scale, seed) for seed in own]
        return found


FIGURES: dict[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        PaperFigure("table1b", "Table 1b: MACs and parameters at each width", kind="table1b"),
        PaperFigure(
            "fig3",
            "Fig. 3 and its extended form: training on one place",
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
            "Fig. 3, with a tenth of the step",
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
            "Beyond the paper: other methods on the same seeds, by skew of labels",
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
}


def find_figures(name: str) -> list[PaperFigure]:
    """Return a figure by name, or all of them."""
    if name == "all":
        return list(FIGURES.values())
    if name not in FIGURES:
        raise UserError(f"{name!r} is not one of: {', '.join(FIGURES)}, all")
    return [FIGURES[name]]


def check_tasks(figures: list[PaperFigure], wanted: tuple[str, ...] | None) -> None:
    """Refuse tasks that no figure has."""
    known = dict.fromkeys(task.name for figure in figures for task in figure.candidates())
    for name in wanted or ():
        if name not in known:
            raise UserError(f"--tasks {name}: allowed are {', '.join(known)}")


def all_jobs(
    figures: list[PaperFigure],
    wanted: tuple[str, ...] | None,
    scale: RunScale,
    seeds: tuple[int, ...] | None,
) -> list[RunJob]:
    """Return the runs of some figures, each once; the first seed of all comes first."""
    found = dict.fromkeys(job for figure in figures for job in figure.jobs(wanted, scale, seeds))
    return sorted(found, key=lambda job: job.seed)
