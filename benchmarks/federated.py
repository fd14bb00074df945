"""What federated training costs, as ratios within one run: `python -m benchmarks.federated [NAME...]`.

NAME is one of `bare`, `workers`, `rounds`, `merge`, `memory`, `population`, `distillation`; without a name all of
them run, in about ten minutes on two cores with nothing else on them. Each prints a table with its bar:

bare          a round with one worker over a bare PyTorch loop that takes the same steps on prebuilt submodels
workers       rounds with one worker over rounds with two
rounds        500 rounds of the paper's CNN task with two workers, run folder and checkpoints included
merge         merging 10 updates of ResNet18 over copying their bytes
memory        the peak while 10 and 100 full-size updates are merged, in models
population    set-up and rounds with 100,000 clients over those with 100
distillation  `fjord-kd` over the same objective that runs both passes always: weights and multiply-accumulates

What is compared takes turns, so that a slow moment hits both; every process computes with one thread.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fjord
from fjord.check import fault_of
from fjord.data.federated import Batch, Generated, TestSet
from fjord.data.writers import writer, writers
from fjord.devices.tiers import Listed
from fjord.elastic.model import ElasticModel
from fjord.elastic.slice import places, taken
from fjord.engines.inprocess import InProcess
from fjord.experiment import Experiment
from fjord.federation import Federation, RoundRecord
from fjord.local import Task, Trainer, Update, size
from fjord.merge import NestedMean
from fjord.methods import fjord_kd
from fjord.models import cifar_resnet18, femnist_cnn, shakespeare_rnn
from fjord.objective import LogitsAt, cross_entropy, divergence
from fjord.strategies.server import apply
from fjord.width import Width, WidthSpace, uniform

OUT = Console(width=110, highlight=False)
ALL_WHOLE = {"devices": None, "tiers": "1:1"}
"""Every client can carry the whole model."""
NEVER = 1_000_000
"""More rounds than are taken here: the last round of a schedule is always evaluated."""


def five_tiers(num_clients: int, seed: int) -> Listed:
    """Return ceilings 1/5, 2/5, ..., 1 in turn, so that every cohort of all clients costs the same."""
    return Listed([uniform(5).widths[client % 5] for client in range(num_clients)])


def noise(clients: int, examples: int, inputs: Callable[[int], Tensor], targets: Callable[[int], Tensor]) -> Generated:
    """Return clients whose examples are noise: enough to take the time of a step."""
    torch.manual_seed(0)
    made = [(inputs(examples), targets(examples)) for _ in range(clients)]
    return Generated(clients, made.__getitem__, TestSet(inputs(2), targets(2), torch.zeros(2, dtype=torch.int64)))


def images(seed: int, clients: int, examples: int) -> Generated:
    return noise(clients, examples, lambda n: torch.randn(n, 3, 24, 24), lambda n: torch.randint(0, 10, (n,)))


def texts(seed: int, clients: int, examples: int) -> Generated:
    return noise(clients, examples, lambda n: torch.randint(0, 90, (n, 80)), lambda n: torch.randint(0, 90, (n, 80)))


def unscored(clients: int) -> Experiment:
    """Return the CNN on all of its clients every round, with 200 examples each and no evaluation."""
    return Experiment(
        name="cnn",
        model=femnist_cnn,
        data=partial(writers, num_clients=clients, examples=200),
        method="fjord",
        devices=five_tiers,
        num_rounds=NEVER,
        eval_every=NEVER,
        cohort_size=clients,
        batch_size=16,
        lr=0.05,
        milestones=(),
    )


def resnet(clients: int, steps: int = 2) -> Experiment:
    """Return ResNet18 on 24x24 crops in batches of 32, few steps a client (500 examples make 16)."""
    data = partial(images, clients=clients, examples=32 * steps)
    small = {"batch_size": 32, "max_local_steps": steps, "lr": 0.01}
    return replace(unscored(clients), name="resnet18", model=cifar_resnet18, data=data, **small)


def rnn(clients: int) -> Experiment:
    """Return the character RNN on sequences of 80 in batches of 4."""
    data = partial(texts, clients=clients, examples=40)
    return replace(unscored(clients), name="rnn", model=shakespeare_rnn, data=data, freeze=("embedding",), batch_size=4)


def touched(experiment: Experiment) -> tuple[Federation, Trainer]:
    """Return a federation with its data made."""
    federation = next(iter(experiment.federations()))
    for client in range(federation.data.num_clients):
        federation.data.examples(client)
    return federation, Trainer(federation.model, federation.data, federation.training, federation.seed)


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# a. a round over a bare loop


Step = tuple[Batch, Width, Width]
"""A batch, the width it is trained at, and the widest that the client holds."""


def record_steps(trainer: Trainer) -> list[Step]:
    """Return a list to which the trainer adds every step it takes from now on."""
    found, coming, objective, make = list[Step](), deque[Batch](), trainer.how.objective, trainer._batches

    def batches(inputs: Tensor, targets: Tensor, seed: int) -> Iterator[Batch]:
        for batch in make(inputs, targets, seed):
            coming.append(batch)
            yield batch

    def noted(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
        found.append((coming.popleft(), width, widest))
        assert found[-1][0][1] is target
        return objective(logits_at, target, width, widest)

    trainer._batches = batches  # type: ignore[method-assign]
    trainer.how = replace(trainer.how, objective=noted)
    return found


class BareLoop:
    """Plain modules, prebuilt at each width, and a plain optimizer for each; nothing federated, nothing checked."""

    def __init__(self, federation: Federation) -> None:
        self.distils = federation.method.name == "fjord-kd"
        self.nets = {width: federation.model.cut(width).train() for width in federation.space.widths}
        make = partial(torch.optim.SGD, lr=federation.schedule.lr)
        self.optimizers = {width: make(net.parameters()) for width, net in self.nets.items()}

    def __call__(self, steps: Iterable[Step]) -> None:
        """Take the steps of a round."""
        for (inputs, target), width, widest in steps:
            ran = {width, widest} if self.distils else {width}
            for used in ran:
                self.optimizers[used].zero_grad()
            self.loss(inputs, target.flatten(), width, widest).backward()
            for used in ran:
                self.optimizers[used].step()

    def loss(self, inputs: Tensor, target: Tensor, width: Width, widest: Width) -> Tensor:
        """Return the loss of one step, written out."""
        if not self.distils:
            return F.cross_entropy(self.nets[width](inputs).flatten(0, -2), target)
        teacher = self.nets[widest](inputs).flatten(0, -2)
        taught = F.cross_entropy(teacher, target)
        if width == widest:
            return taught
        student = self.nets[width](inputs).flatten(0, -2)
        known, guessed = teacher.detach().log_softmax(-1), student.log_softmax(-1)
        return taught + F.kl_div(guessed, known, reduction="batchmean", log_target=True)


def against_bare(experiment: Experiment, warm_up: int, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of our round and of the bare loop, and the median of their ratio."""
    federation, trainer = touched(experiment)
    bare, steps, pairs = BareLoop(federation), record_steps(trainer), list[tuple[float, float]]()
    with InProcess(trainer, federation.data.test, workers=1) as engine:
        ours = federation.rounds(engine)
        for _ in range(warm_up + rounds):
            pairs.append((timed(partial(next, ours)), timed(partial(bare, steps))))
            steps.clear()
    kept = pairs[warm_up:]
    return median(p[0] for p in kept), median(p[1] for p in kept), median(p[0] / p[1] for p in kept)


def bare() -> None:
    """Compare a round of one worker with a bare PyTorch loop over the same steps."""
    table = Table(
        "task", "a round, s", "bare loop, s", "ratio", title="one worker over a bare loop (bar: at most 1.10)"
    )
    kd = {"method": "fjord-kd"}
    for name, experiment, warm_up, rounds in (
        ("CNN, fjord", unscored(10), 4, 40),
        ("CNN, fjord-kd", replace(unscored(10), **kd), 4, 30),
        ("RNN, fjord", rnn(5), 4, 25),
        ("RNN, fjord-kd", replace(rnn(5), **kd), 4, 15),
        ("ResNet18, fjord, 2 steps a client", resnet(5), 2, 6),
        ("ResNet18, fjord, 8 steps a client", resnet(5, steps=8), 1, 2),
    ):
        own, other, ratio = against_bare(experiment, warm_up, rounds)
        table.add_row(name, f"{own:.3f}", f"{other:.3f}", f"{ratio:.3f}")
    OUT.print(table)


# b. two workers over one


def speed_up(experiment: Experiment, warm_up: int, rounds: int) -> list[float]:
    """Return the median seconds of a round with one worker and with two."""
    seconds: list[list[float]] = [[], []]
    with ExitStack() as stack:
        sides = []
        for workers in (1, 2):
            federation, trainer = touched(experiment)
            engine = stack.enter_context(InProcess(trainer, federation.data.test, workers))
            sides.append(federation.rounds(engine))
        for _ in range(warm_up + rounds):
            for side, taken_ in zip(sides, seconds, strict=True):
                taken_.append(next(side).seconds)
    return [median(s[warm_up:]) for s in seconds]


def workers() -> None:
    """Compare one worker with two."""
    table = Table("task", "1 worker, s a round", "2 workers", "speed-up", title="two workers (bar: at least 1.7)")
    for name, experiment, warm_up, rounds in (
        ("CNN, fjord", unscored(10), 6, 40),
        ("CNN, fjord-kd", replace(unscored(10), method="fjord-kd"), 6, 30),
        ("ResNet18, fjord, 2 steps a client", resnet(10), 2, 4),
        ("ResNet18, fjord, 8 steps a client", resnet(10, steps=8), 1, 2),
    ):
        one, two = speed_up(experiment, warm_up, rounds)
        table.add_row(name, f"{one:.3f}", f"{two:.3f}", f"{one / two:.2f}")
    OUT.print(table)


# c. 500 rounds


def rounds() -> None:
    """Time whole runs of the paper's CNN task: 200 writers of 200 examples, 10 a round, scored every 50 rounds."""
    table = Table("method", "seconds", "accuracy at 1/5", "at 1", title="500 rounds, 2 workers (aim: below 180 s)")
    base = Experiment(
        name="rounds", model=femnist_cnn, data=partial(writers, num_clients=200, examples=200), eval_every=50
    )
    for method in ("fjord", "fjord-kd"):
        experiment, records = replace(base, method=method, workers=2), list[RoundRecord]()

        def keep(record: RoundRecord, *_: int, records: list[RoundRecord] = records) -> None:
            records.append(record)

        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            fjord.run(experiment, Path(folder) / "run", on_round=keep)
            seconds = time.perf_counter() - start
        scores = list(records[-1].scores.values())
        table.add_row(method, f"{seconds:.0f}", f"{scores[0].accuracy:.1%}", f"{scores[-1].accuracy:.1%}")
    OUT.print(table)


# d. merging over copying


def ten_tasks(model: ElasticModel) -> list[Task]:
    """Return what ten clients of uniform-5 tiers are sent, two of each tier."""
    found = []
    for client, ceiling in enumerate(w for w in reversed(uniform(5).widths) for _ in range(2)):
        space, held = uniform(5).upto(ceiling), model.plan.ordered(ceiling)
        tensors = {key: t.detach() for key, t in taken(model, places(model, held, space.widths)).items()}
        found.append(Task(client, 0, 0.1, held, space, tensors))
    return found


def answer(task: Task) -> Update:
    """Return an update of 100 examples with weights of its own."""
    tensors = {key: t.clone() for key, t in task.tensors.items()}
    width = task.space.largest
    return Update(task.client_id, tensors, 100, 1.0, {width: 1}, {width: 1}, 0)


def merge() -> None:
    """Compare merging ten updates of ResNet18 into the model with copying them."""
    model = fjord.elasticize(cifar_resnet18(), torch.randn(2, 3, 24, 24))
    tasks = ten_tasks(model)
    updates = [answer(task) for task in tasks]
    found = {task.space: places(model, task.held, task.space.widths) for task in tasks}  # as a federation keeps them
    where = [found[task.space] for task in tasks]
    copies = [{key: torch.empty_like(t) for key, t in update.tensors.items()} for update in updates]

    def merged() -> None:
        mean = NestedMean(model)
        for update, place in zip(updates, where, strict=True):
            mean.add(update.tensors, place, update.num_examples)
        apply(model, mean, None, {})

    def checked() -> None:
        assert not any(fault_of(task, update) for task, update in zip(tasks, updates, strict=True))

    def copied() -> None:
        for copy, update in zip(copies, updates, strict=True):
            for key, tensor in update.tensors.items():
                copy[key].copy_(tensor)

    times = [[timed(f) for f in (merged, checked, copied)] for _ in range(25)]
    own, check, other = (median(column) for column in zip(*times[3:], strict=True))
    table = Table("what", "ms", "over copying", title="merging 10 updates of ResNet18 (bar: at most 4)")
    megabytes = sum(size(update.tensors) for update in updates) / 1e6
    table.add_row(f"copy their {megabytes:.0f} MB", f"{other * 1e3:.1f}", "1")
    table.add_row("merge them into the model", f"{own * 1e3:.1f}", f"{own / other:.2f}")
    table.add_row("check them, merge them", f"{(own + check) * 1e3:.1f}", f"{(own + check) / other:.2f}")
    OUT.print(table)


# e. memory while merging


@dataclass
class Answering:
    """In the place of a trainer: clients that send back what they got."""

    model: ElasticModel

    def __call__(self, task: Task) -> Update:
        """Answer."""
        return answer(task)


class OneByOne:
    """An engine whose clients answer at once, one after the other."""

    def train(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Update | str]]:
        """Answer each task when it is asked for."""
        for task in tasks:
            yield task, answer(task)
            del task  # let go of it before the next is made

    def __enter__(self) -> "OneByOne":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def status(field: str) -> int:
    """Return a size of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peak(cohort: int, num_workers: int) -> float:
    """Return by how many models this process grows in a round; every client holds the whole model."""
    experiment = replace(resnet(2), cohort_size=cohort, data=partial(images, clients=cohort, examples=1), **ALL_WHOLE)
    federation = next(iter(experiment.federations()))
    engine = OneByOne()
    if num_workers > 1:
        engine = InProcess(Answering(federation.model), federation.data.test, num_workers)
    with engine:
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        assert not next(federation.rounds(engine)).dropped
    return (status("VmHWM") - before) / size(federation.model.tensors)


def memory() -> None:
    """Measure, each in a process of its own, the peak of a round above the model it starts with."""
    table = Table("engine", "updates", "models", title="memory while merging, above the model itself (bar: at most 4)")
    for num_workers, name in ((1, "one by one"), (2, "2 workers, main process")):
        for cohort in (10, 100):
            code = f"from benchmarks.federated import peak; print(peak({cohort}, {num_workers}))"
            found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
            table.add_row(name, str(cohort), f"{float(found.stdout):.2f}")
    OUT.print(table)


# f. population


def few(seed: int, num_clients: int) -> Generated:
    """Return writers of 20 examples, made anew whenever they take part; the test set is that of 100 writers."""
    test = writers(seed, 100, examples=1).test
    return Generated(num_clients, lambda c: writer(seed, c, 20, "train", 0.5), test, remembered=1)


def population() -> None:
    """Compare 100,000 clients with 100."""
    base = replace(unscored(10), devices=None, tiers="uniform-5", cohort_size=10)
    sizes, set_up, per_round = (100, 100_000), list[list[float]](), list[list[float]]()
    for _ in range(4):
        made: list[Federation] = []
        experiments = [replace(base, data=partial(few, num_clients=n)) for n in sizes]
        set_up.append([timed(lambda e=e, m=made: m.append(next(iter(e.federations())))) for e in experiments])
        trainers = [Trainer(f.model, f.data, f.training, f.seed) for f in made]
        engines = [InProcess(t, f.data.test) for t, f in zip(trainers, made, strict=True)]
        with engines[0], engines[1]:
            sides = [f.rounds(e) for f, e in zip(made, engines, strict=True)]
            times = [[next(side).seconds for side in sides] for _ in range(40)]
        per_round.extend(times[10:])
    table = Table("clients", "set-up, s", "s a round", title="population (bar: no dearer)")
    columns = [[median(column) for column in zip(*rows, strict=True)] for rows in (set_up[1:], per_round)]
    for i, n in enumerate(sizes):
        table.add_row(f"{n:,}", f"{columns[0][i]:.3f}", f"{columns[1][i]:.4f}")
    table.add_row("ratio", f"{columns[0][1] / columns[0][0]:.2f}", f"{columns[1][1] / columns[1][0]:.2f}")
    OUT.print(table)


# g. passes that change nothing


def both_passes(logits_at: LogitsAt, target: Tensor, width: Width, widest: Width) -> Tensor:
    """Return the objective of fjord-kd, literally: teacher and student run even where they are one."""
    teacher, student = logits_at(widest), logits_at(width)
    return cross_entropy(teacher, target) + divergence(student, teacher, target)


def few_rounds(experiment: Experiment, count: int) -> tuple[dict[str, Tensor], int, float]:
    """Return the weights after some rounds, the multiply-accumulates they took and the seconds."""
    federation, trainer = touched(experiment)
    with InProcess(trainer, federation.data.test) as engine:
        records = [record for record, _ in zip(federation.rounds(engine), range(count), strict=False)]
    macs = sum(tier.macs for record in records for tier in record.tiers.values())
    return federation.model.state_dict(), macs, sum(record.seconds for record in records)


def in_double(experiment: Experiment) -> Experiment:
    """Return the same in double precision: what differs by rounding alone then all but vanishes."""

    def data(seed: int) -> Generated:
        single = experiment.data(seed)
        made = [(x.double(), y) for x, y in map(single.examples, range(single.num_clients))]
        test = TestSet(single.test.inputs.double(), single.test.targets, single.test.owners)
        return Generated(len(made), made.__getitem__, test)

    return replace(experiment, model=lambda: experiment.model().double(), data=data)


def gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    """Return the largest difference of two sets of weights."""
    largest = max(float((one[key] - other[key]).abs().max()) for key in one)
    return f"{largest:.1e}" if largest else "0, bit-equal"


def distillation() -> None:
    """Compare fjord-kd with the same objective that skips nothing, in single and in double precision."""
    literal = replace(fjord_kd(), objective=both_passes)
    table = Table("5 rounds of 10 clients", "MACs", "skipping none", "ratio", "seconds", "gap, float32", "float64")
    table.title = "fjord-kd skips the student where it is the teacher (bar: same weights, fewer MACs)"
    for name, change in (("five tiers", {}), ("all at full width", {"widths": WidthSpace.of(["1"]), **ALL_WHOLE})):
        experiment = replace(unscored(10), method="fjord-kd", **change)
        own, macs, seconds = few_rounds(experiment, 5)
        other, all_macs, all_seconds = few_rounds(replace(experiment, method=literal), 5)
        exact = in_double(experiment)
        fine, finer = (few_rounds(e, 5)[0] for e in (exact, replace(exact, method=literal)))
        times = f"{seconds:.2f} / {all_seconds:.2f}"
        counts = (f"{macs / 1e9:.2f} G", f"{all_macs / 1e9:.2f} G", f"{macs / all_macs:.3f}")
        table.add_row(name, *counts, times, gap(own, other), gap(fine, finer))
    OUT.print(table)


BARS = (bare, workers, rounds, merge, memory, population, distillation)


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    known = {bar.__name__: bar for bar in BARS}
    strange = [name for name in names if name not in known]
    if strange:
        sys.exit(f"{', '.join(strange)}: unknown; known: {', '.join(known)}")
    OUT.print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in names or known:
        seconds = timed(known[name])
        OUT.print(f"{name}: {seconds:.0f} s in all\n")


if __name__ == "__main__":
    main(sys.argv[1:])
