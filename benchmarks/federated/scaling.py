"""Two workers against one, whole runs, and a large population against a small one."""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from rich.table import Table

import fjord
from benchmarks.federated.tasks import OUT, resnet, timed, touched, unscored
from fjord.data.federated import GeneratedData
from fjord.data.writers import draw_writer, writers
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.experiment import Experiment
from fjord.federated.records import RoundRecord
from fjord.federated.rounds import Federation
from fjord.models import femnist_cnn
from fjord.training.local import ClientTrainer


def speed_up(experiment: Experiment, warm_up: int, rounds: int) -> list[float]:
    """Return the median seconds of a round with one worker and with two."""
    seconds: list[list[float]] = [[], []]
    with ExitStack() as stack:
        sides = []
        for workers in (1, 2):
            federation, trainer = touched(experiment)
            engine = stack.enter_context(
                InProcessEngine(federation, workers=workers, trainer=trainer)
            )
            sides.append(federation.rounds(engine))
        for _ in range(warm_up + rounds):
            for side, taken_ in zip(sides, seconds, strict=True):
                taken_.append(next(side).seconds)
    return [median(s[warm_up:]) for s in seconds]


def workers() -> None:
    """Compare one worker with two."""
    table = Table(
        "task",
        "1 worker, s a round",
        "2 workers",
        "speed-up",
        title="two workers (limit: at least 1.7)",
    )
    for name, experiment, warm_up, rounds in (
        ("CNN, fjord", unscored(10), 6, 40),
        ("CNN, fjord-kd", replace(unscored(10), method="fjord-kd"), 6, 30),
        ("ResNet18, fjord, 2 steps a client", resnet(10), 2, 4),
        ("ResNet18, fjord, 8 steps a client", resnet(10, steps=8), 1, 2),
    ):
        one, two = speed_up(experiment, warm_up, rounds)
        table.add_row(name, f"{one:.3f}", f"{two:.3f}", f"{one / two:.2f}")
    OUT.print(table)


def rounds() -> None:
    """Time whole runs of the paper's CNN task.

    200 writers of 200 examples, 10 clients a round, scored every 50 rounds.
    """
    table = Table(
        "method",
        "seconds",
        "accuracy at 1/5",
        "at 1",
        title="500 rounds, 2 workers (aim: below 180 s)",
    )
    base = Experiment(
        name="rounds",
        model=femnist_cnn,
        data=partial(writers, num_clients=200, examples=200),
        eval_every=50,
    )
    for method in ("fjord", "fjord-kd"):
        experiment, records = replace(base, method=method, workers=2), list[RoundRecord]()

        def keep(record: RoundRecord, *_: int, records: list[RoundRecord] = records) -> None:
            records.append(record)

        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            fjord.run_experiment(experiment, Path(folder) / "run", on_round=keep)
            seconds = time.perf_counter() - start
        scores = list(records[-1].scores.values())
        table.add_row(
            method, f"{seconds:.0f}", f"{scores[0].accuracy:.1%}", f"{scores[-1].accuracy:.1%}"
        )
    OUT.print(table)


def few(seed: int, num_clients: int) -> GeneratedData:
    """Return writers of 20 examples, made whenever they take part; the test set has 100 writers."""
    test = writers(seed, 100, examples=1).test
    return GeneratedData(
        num_clients, lambda c: draw_writer(seed, c, 20, "train", 0.5), test, cache_size=1
    )


def population() -> None:
    """Compare 100,000 clients with 100."""
    base = replace(unscored(10), devices=None, tiers="uniform-5", cohort_size=10)
    sizes, set_up, per_round = (100, 100_000), list[list[float]](), list[list[float]]()
    for _ in range(4):
        made: list[Federation] = []
        experiments = [replace(base, data=partial(few, num_clients=n)) for n in sizes]
        set_up.append(
            [timed(lambda e=e, m=made: m.append(next(iter(e.federations())))) for e in experiments]
        )
        trainers = [ClientTrainer(f.model, f.data, f.training, f.seed) for f in made]
        engines = [InProcessEngine(f, trainer=t) for t, f in zip(trainers, made, strict=True)]
        with engines[0], engines[1]:
            sides = [f.rounds(e) for f, e in zip(made, engines, strict=True)]
            times = []
            for _ in range(40):
                times.append([next(side).seconds for side in sides])
        per_round.extend(times[10:])
    table = Table(
        "clients", "set-up, s", "s a round", title="population (limit: no more expensive)"
    )
    columns = []
    for rows in (set_up[1:], per_round):
        columns.append([median(column) for column in zip(*rows, strict=True)])
    for i, n in enumerate(sizes):
        table.add_row(f"{n:,}", f"{columns[0][i]:.3f}", f"{columns[1][i]:.4f}")
    table.add_row(
        "ratio", f"{columns[0][1] / columns[0][0]:.2f}", f"{columns[1][1] / columns[1][0]:.2f}"
    )
    OUT.print(table)
