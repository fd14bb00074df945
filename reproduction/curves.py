"""The curves of the paper: each is a recipe with settings, and one run folder for each seed."""

from dataclasses import dataclass

from reproduction.scales import RunScale


@dataclass(frozen=True)
class PaperTask:
    """A model with its data, under which curves are kept: RUNS/TASK/CURVE/SEED."""

    name: str
    title: str
    recipe: str
    settings: tuple[str, ...] = ()
    central: str = ""
    """The recipe of centralised training with the same data."""
    column: str = ""
    """Which of the paper's three tasks it stands for."""
    probe: bool = False
    """Whether it only explains a result: it is shown where all curves of a figure have runs."""


@dataclass(frozen=True)
class FigureCurve:
    """One line of a figure."""

    name: str
    label: str
    settings: tuple[str, ...] = ()
    central: bool = False
    """Whether it is trained centrally."""
    reads: str = "scores"
    """scores, or random: the scores of random units in a run of single models."""


PAPER_TASKS = (
    PaperTask("cifar10", "ResNet18, CIFAR10", "cifar10", (), "cifar10-central", "cifar10"),
    PaperTask("femnist", "CNN, FEMNIST", "femnist", (), "femnist-central", "femnist"),
    PaperTask(
        "femnist-digits",
        "CNN, digits of FEMNIST",
        "femnist-digits",
        (),
        "femnist-digits-central",
        "femnist",
    ),
    PaperTask(
        "emnist-skewed",
        "CNN, EMNIST (Dirichlet 0.5)",
        "emnist-skewed",
        (),
        "emnist-central",
        "femnist",
    ),
    PaperTask(
        "emnist-skewed-850",
        "CNN, EMNIST (Dirichlet 0.5), 850 clients",
        "emnist-skewed",
        ("data.num_clients=850",),
        column="femnist",
        probe=True,
    ),
    PaperTask(
        "shakespeare",
        "RNN, Shakespeare",
        "shakespeare",
        (),
        "shakespeare-central",
        "shakespeare",
    ),
    PaperTask("emnist-iid", "CNN, EMNIST, IID", "emnist-skewed", ("data.partition=iid",)),
    PaperTask(
        "emnist-dirichlet-0.1",
        "CNN, EMNIST, Dirichlet 0.1",
        "emnist-skewed",
        ("data.partition=dirichlet-0.1",),
    ),
    PaperTask(
        "cifar10-dirichlet-0.5",
        "ResNet18, CIFAR10, Dirichlet 0.5",
        "cifar10",
        ("data.partition=dirichlet-0.5",),
    ),
    PaperTask(
        "cifar10-dirichlet-0.1",
        "ResNet18, CIFAR10, Dirichlet 0.1",
        "cifar10",
        ("data.partition=dirichlet-0.1",),
    ),
)
TASKS: dict[str, PaperTask] = {task.name: task for task in PAPER_TASKS}
PAPER_CURVES = (
    FigureCurve("fjord-kd", "FjORD w/ KD", ("method=fjord-kd",)),
    FigureCurve("fjord", "FjORD", ("method=fjord",)),
    FigureCurve("efd", "eFD", ("method=efd",)),
    FigureCurve("efd-all", "eFD, mean over all clients", ("method=efd", "average=all")),
    FigureCurve("fjord-efd", "FjORD w/ eFD", ("method=fjord-efd",)),
    FigureCurve("fd", "FD", ("method=fd",)),
    FigureCurve(
        "fjord-kd-u10",
        "FjORD w/ KD, uniform-10",
        ("method=fjord-kd", "widths=uniform-10", "tiers=uniform-10"),
    ),
    FigureCurve(
        "fjord-kd-ds05", "FjORD w/ KD, drop scale 0.5", ("method=fjord-kd", "drop_scale=1/2")
    ),
    FigureCurve("heterofl", "HeteroFL", ("method=heterofl",)),
    FigureCurve("fedrolex", "FedRolex", ("method=fedrolex",)),
    FigureCurve("exclusive-small", "exclusive small model", ("method=exclusive-small",)),
    FigureCurve("drop-low-tier", "drop low tiers", ("method=drop-low-tier",)),
    FigureCurve("fedavg", "FedAvg (ignores ceilings)", ("method=fedavg",)),
    FigureCurve("od", "OD", ("method=od",), central=True),
    FigureCurve("od-kd", "OD w/ KD", ("method=od-kd",), central=True),
    FigureCurve("single", "single models", ("method=single",), central=True),
    FigureCurve("od-step", "OD, lr 0.01", ("method=od", "lr=0.01"), central=True),
    FigureCurve("od-kd-step", "OD w/ KD, lr 0.01", ("method=od-kd", "lr=0.01"), central=True),
    FigureCurve(
        "single-step", "single models, lr 0.01", ("method=single", "lr=0.01"), central=True
    ),
    FigureCurve(
        "random", "SM1 w/ random dropout", ("method=single",), central=True, reads="random"
    ),
)
CURVES: dict[str, FigureCurve] = {curve.name: curve for curve in PAPER_CURVES}


@dataclass(frozen=True)
class RunJob:
    """One run: a curve of a task with one seed."""

    place: str
    """Its folder under RUNS, without the seed."""
    recipe: str
    settings: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        """The run's folder under RUNS."""
        return f"{self.place}/{self.seed}"

    @property
    def all_settings(self) -> list[str]:
        """All that is set, in the order in which it is."""
        return [*self.settings, f"seed={self.seed}"]


def scaled_task(task: PaperTask, curve: FigureCurve) -> str:
    """Return the name under which a scale reduces a curve of a task."""
    return task.central if curve.central else task.name


def run_place(task: PaperTask, curve: FigureCurve) -> str:
    """Return the folder of a curve's runs under RUNS."""
    folder = scaled_task(task, curve)
    if curve.reads == "random":
        return f"{folder}/single"
    return f"{folder}/{curve.name}"


def run_job(task: PaperTask, curve: FigureCurve, scale: RunScale, seed: int) -> RunJob:
    """Return the run of one seed at a scale."""
    place = run_place(task, curve)
    reduced = scale.reduction_for(scaled_task(task, curve)).settings
    if curve.central:
        return RunJob(place, task.central, (*reduced, *curve.settings), seed)
    settings = (*task.settings, *reduced, *curve.settings, "workers=1")
    return RunJob(place, task.recipe, settings, seed)
