"""A real fleet of three nodes over TLS: the weights of the in-process engine, whatever fails.

Every process is real, and none can reach a network where the kernel lets the tests leave it. Rounds
are slow, as each message is a process, so few runs carry many tests: one that nothing disturbs, and
one that everything does.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fed_oracles import assignments

pytest.importorskip("flwr")
import psutil
from flower_runs import RECIPE, assert_same, in_process
from local_grid import LocalGrid
from network import cut_off, demand_cut_off

from fjord.engines.flower import keys, loopback
from fjord.engines.flower.client import client_app
from fjord.engines.flower.engine import ReplyPolicy
from fjord.engines.flower.programs import process_environment, script_path
from fjord.engines.flower.run_spec import RunSpec
from fjord.engines.flower.submit import write_app
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.flower_app import make_runtime, serve_run
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from fjord.training.assignment import Rejected

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not psutil.LINUX, reason="fjord fleet needs Linux"),
]
FIRST = ("none", "raises", "NaN", "late")
"""What happens to the clients of the first round, in the order they are sent.

The late one keeps its node from no other."""
SETTINGS = ("num_rounds=3", "cohort_size=4")
SPOILER = '''
import os, time
from dataclasses import replace
from pathlib import Path

import torch
from fjord.experiments.flower_app import make_runtime
from fjord.engines.flower.client import client_app

NOTES = Path(os.environ["FLEET_NOTES"])
NODE = os.environ["FJORD_FLEET"].rpartition("/")[2]
SENT = Path(__file__).with_name("sent")


def with_nan(tensor):
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor


CHANGES = {"NaN": with_nan, "other shapes": lambda tensor: torch.stack([tensor, tensor])}


def wait_for(name):
    while not (NOTES / name).exists():
        time.sleep(0.1)


class Spoiling:
    """Trains as it should, notes where, and does in each round what the tests are about."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.model = trainer.model
        self.fallbacks = trainer.fallbacks
        self.data = trainer.data

    def __call__(self, task, reduced=None):
        (NOTES / f"round-{task.round_index}-client-{task.client_id}").write_text(NODE)
        update = self.trainer(task, reduced)
        fault = {0: FIRST.get(task.client_id), 1: self.second(task)}.get(task.round_index)
        if fault == "raises":
            raise RuntimeError("no data here")
        if fault == "late":
            wait_for("round 0 is over")
            (NOTES / "the late one answers").touch()
        if fault == "killed":
            wait_for("never")
        change = CHANGES.get(fault, lambda tensor: tensor)
        tensors = {key: change(tensor) for key, tensor in update.tensors.items()}
        return replace(update, tensors=tensors)

    def second(self, task):
        """In the second round, faults go to who comes first: nobody knows who is sent where."""
        for fault in ("killed", "other shapes") if task.round_index == 1 else ():
            try:
                (NOTES / fault).mkdir()
            except FileExistsError:
                continue
            (NOTES / fault / f"{NODE} {task.client_id}").touch()
            return fault


def make(order):
    made = make_runtime(order, SENT)
    return replace(made, trainer=Spoiling(made.trainer))


app = client_app(make)
'''


@dataclass
class Site:
    """A fleet and the folder in which it is used."""

    path: Path
    cut: bool
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def fleet(self) -> loopback.LoopbackFleet:
        found = loopback.load_fleet(self.path / ".fleet")
        assert found is not None
        return found

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command, its output in a file: a pipe would have to be read all the time."""
        with (self.path / "output").open("ab") as file:
            self.started.append(
                subprocess.Popen([*words], cwd=self.path, env=self.env, stdout=file, stderr=file)
            )
        return self.started[-1]

    def fjord(self, *words: str) -> None:
        """Run a command that has to succeed."""
        process = self.start(sys.executable, "-m", "fjord.cli", *words)
        assert process.wait(300) == 0, (self.path / "output").read_text()

    def end(self) -> None:
        """End what a test that failed may have left."""
        for process in self.started:
            process.kill()
            process.wait()
        loopback.stop_fleet(self.path / ".fleet")

    def traffic(self, run_id: str) -> dict[str, int]:
        words = [script_path("flwr"), "list", "fleet", "--run-id", run_id, "--format", "json"]
        shown = subprocess.run(
            words, cwd=self.path, env=self.env, stdout=subprocess.PIPE, check=True
        ).stdout
        return json.loads(shown)["runs"][0]["network-traffic"]

    def notes(self, pattern: str) -> dict[str, str]:
        """What clients wrote down: by file, the node."""
        return {path.name: path.read_text() for path in sorted((self.path / "notes").glob(pattern))}


def until(found, process=None, seconds=180.0):
    """Wait for something, while a process lives, and return it."""
    limit = time.monotonic() + seconds
    while not (value := found()):
        assert process is None or process.poll() is None, "it ended too early"
        assert time.monotonic() < limit
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Three nodes over TLS, cut off from the network if possible, ended whatever happens."""
    path = tmp_path_factory.mktemp("deployment")
    (path / "notes").mkdir()
    with ExitStack() as stack:
        found = Site(path, stack.enter_context(cut_off()))
        found.env |= {
            **process_environment(path / ".fleet" / "flwr"),
            "FLEET_NOTES": str(path / "notes"),
        }
        found.env |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
        stack.callback(found.end)
        found.fjord("fleet", "up", "--nodes", "3", "--tls")
        yield found


@dataclass
class Calm:
    """A run that nothing disturbed, and what was seen meanwhile."""

    run: RunFolder
    recipe: str
    run_id: str
    stranger_log: str
    online: set[str]
    trained: dict[str, int]
    """How many clients each node was sent."""


@pytest.fixture(scope="module")
def calm(site):
    """Two rounds of a user's own recipe, whose file is gone before a node could look for it."""
    (site.path / "mine").mkdir()
    recipe, shapes = site.path / "mine" / "tiny.py", site.path / "mine" / "shapes.py"
    recipe.write_text(
        RECIPE.replace("import fjord\n", "import fjord\nimport shapes\n").replace(
            "3, 10, 3", "3, shapes.WIDE, 3"
        )
    )
    shapes.write_text("WIDE = 10\n")
    options = ["--engine", "flower", "--superlink", "fleet", "--no-page", "--set", "num_rounds=2"]
    words = [
        sys.executable,
        "-m",
        "fjord.cli",
        "run",
        str(recipe),
        *options,
        "--set",
        "cohort_size=3",
    ]
    process = site.start(*words, "--output", "calm")
    run_id = until(lambda: started_run(site.path / "output"), process)
    for file in (recipe, shapes):
        file.rename(file.with_suffix(".away"))
    with paused(
        f"{site.fleet.mark}/node-0"
    ):  # so that the run is not over before the stranger has come
        log = refused(site)
        online = site.fleet.online_nodes()
        assert process.poll() is None
    assert process.wait(300) == 0, (site.path / "output").read_text()
    for file in (recipe, shapes):
        file.with_suffix(".away").rename(file)
    counts = {name: trained(site, name) for name in ("node-0", "node-1", "node-2")}
    return Calm(RunFolder(site.path / "calm"), str(recipe), run_id, log, online, counts)


def started_run(output: Path) -> str:
    """The id of a run that was started, if it was."""
    return output.read_text().partition("started run ")[2].partition("\n")[0]


@contextmanager
def paused(mark: str) -> Iterator[None]:
    """Keep all processes of a node from going on meanwhile."""
    found = loopback.find_marked(mark)
    assert found
    loopback.send_signal(found, signal.SIGSTOP)
    try:
        yield
    finally:
        loopback.send_signal(found, signal.SIGCONT)


def refused(site: Site) -> str:
    """Start a node whose key nobody registered, and return what it says when it has given up."""
    folder = site.fleet.folder
    keys.make_node_key(folder / "keys" / "unknown")
    (own,) = loopback.free_ports(1)
    command = loopback.supernode_command(site.fleet, "unknown", "", own)
    log = folder / "logs" / "unknown.log"
    with log.open("wb") as file:
        env = process_environment(folder / "home" / "unknown")
        done = subprocess.run(
            command, env=env, cwd=folder / "logs", stdout=file, stderr=file, timeout=60, check=False
        )
    assert done.returncode != 0
    return log.read_text()


def test_three_nodes_over_tls_give_the_weights_of_the_in_process_engine_bit_for_bit(calm, tmp_path):
    settings = ("num_rounds=2", "cohort_size=3")
    assert_same(calm.run, in_process(calm.recipe, tmp_path / "here", settings))
    assert [row["engine"]["answered"] for row in calm.run.metrics()] == [3, 3]


def test_every_node_trained(calm):
    assert calm.trained == {"node-0": 2, "node-1": 2, "node-2": 2}


def trained(site: Site, name: str) -> int:
    """How many clients a node was sent since its last start."""
    log = (site.fleet.folder / "logs" / f"{name}.log").read_text()
    return log.rpartition("Starting Flower SuperNode")[2].count("Receiving: train message")


def test_the_superlink_carried_the_bytes_of_the_slices_and_little_more(site, calm, tmp_path):
    grid = LocalGrid(client_app(make_runtime), [{}, {}, {}])
    serve_run(
        grid,
        RunSpec(calm.recipe, ("num_rounds=2", "cohort_size=3")),
        ReplyPolicy(),
        tmp_path / "run",
    )
    down, up = (sum(size[k] for size in grid.sizes) for k in (1, 2))
    traffic = site.traffic(calm.run_id)
    around = 1500 * len(grid.sizes)  # what Flower's own requests add to a message
    assert down < traffic["outbound-bytes"] < down + around
    assert up < traffic["inbound-bytes"] < up + around


def test_a_key_that_nobody_registered_is_refused_while_a_run_goes_on(site, calm):
    assert "Exit Code: 305" in calm.stranger_log
    assert calm.online == set(site.fleet.node_ids.values())
    assert len(calm.online) == 3


def test_no_process_could_reach_a_network(site, calm):
    demand_cut_off(site.cut)
    mine = os.readlink("/proc/thread-self/ns/net")
    family = loopback.find_marked(site.fleet.mark)
    assert len(family) >= 8
    assert {os.readlink(f"/proc/{process.pid}/ns/net") for process in family} == {mine}


@dataclass
class Hard:
    """A run that everything disturbed."""

    run: RunFolder
    deadline: float
    victim: str
    late_answered: bool
    taken: bool
    """Whether the run folder was still somebody's just after the SuperLink had been killed."""
    before: list[dict]
    """The metrics when the SuperLink was killed."""
    left: set[psutil.Process]
    """What was left of its children when it had been restarted."""
    faults: list[dict[int, str]]
    """By round, what was done to whom."""
    notes: dict[str, str]


@pytest.fixture(scope="module")
def hard(site, calm):
    """Three rounds of four clients.

    Round 0: one raises, one sends NaN, one answers in round 1.
    Round 1: one sends other shapes, and a node is killed.
    Round 2: the SuperLink is killed; both come back, and the run is resumed.
    """
    deadline = round(
        5 + 2.1 * calm.run.metrics()[1]["seconds"]
    )  # a round of more clients, on this machine
    faults = dict(zip(cohort(calm.recipe), FIRST, strict=True))
    process = start_spoilt(site, calm, faults, deadline)
    run, notes = RunFolder(site.path / "hard"), site.path / "notes"
    until(lambda: len(run.metrics()) == 1, process)
    (notes / "round 0 is over").touch()
    victim = until(lambda: found(notes / "killed"), process)[0]
    kill(f"{site.fleet.mark}/{victim}")
    until(lambda: len(run.metrics()) == 2, process)
    late_answered = (notes / "the late one answers").exists()
    until(lambda: site.notes("round-2-*"), process)
    children = kill_superlink(site)
    taken = is_taken(run)
    before = run.metrics()
    process.terminate()
    process.wait(60)
    site.fjord("fleet", "restart", "superlink")
    left = loopback.living_processes(children)
    site.fjord("fleet", "restart", victim)
    site.fjord("run", "--resume", "hard", "--engine", "flower", "--superlink", "fleet", "--no-page")
    shapes = {int(found(notes / "other shapes")[1]): "other shapes"}
    return Hard(
        run,
        deadline,
        victim,
        late_answered,
        taken,
        before,
        left,
        [faults, shapes],
        site.notes("round-*"),
    )


def found(folder: Path) -> list[str]:
    """The node and the client of a fault in the second round."""
    return next((path.name.split() for path in folder.glob("node-*")), [])


def cohort(recipe: str) -> list[int]:
    """The clients of the first round, in the order they are sent."""
    federation = next(apply_settings(find_recipe(recipe)(), SETTINGS).federations())
    return [task.client_id for task in assignments(federation, 0)]


def start_spoilt(
    site: Site, calm: Calm, faults: dict[int, str], deadline: float
) -> subprocess.Popen[str]:
    """Start an app of the test's own with Flower's own `flwr run`."""
    recipe = Path(calm.recipe)
    write_app(
        site.path / "app", {"recipe.py": recipe, "beside/shapes.py": recipe.with_name("shapes.py")}
    )
    (site.path / "app" / "fjord_app" / "client.py").write_text(f"{SPOILER}\n\nFIRST = {faults}\n")
    config = {
        "recipe": str(recipe),
        "settings": " ".join(SETTINGS),
        "output": str(site.path / "hard"),
    }
    words = " ".join(
        f"{key}={json.dumps(value)}"
        for key, value in {**config, "deadline": float(deadline)}.items()
    )
    return site.start(script_path("flwr"), "run", "app", "fleet", "--stream", "--run-config", words)


def kill_superlink(site: Site) -> set[psutil.Process]:
    """Kill the SuperLink alone, and return its children."""
    superlink = site.fleet.processes["superlink"]
    children = loopback.find_marked(superlink.mark)
    os.kill(superlink.pid, signal.SIGKILL)
    until(lambda: not superlink.alive)
    return children


def is_taken(run: RunFolder) -> bool:
    try:
        with run.lock():
            return False
    except ValueError as error:
        return "another process runs in this folder" in str(error)


def kill(mark: str) -> None:
    """Kill a process with its children, all at once."""
    loopback.send_signal(loopback.find_marked(mark), signal.SIGKILL)


class Without(InProcessEngine):
    """The in-process engine, without those that a run dropped."""

    missing: set[tuple[int, str]]

    def train(self, tasks):
        for task, reply in super().train(tasks):
            is_missing = (task.round_index, str(task.client_id)) in self.missing
            yield task, Rejected("left out") if is_missing else reply


def test_the_weights_are_those_of_a_run_in_which_nothing_failed_and_the_dropped_were_missing(
    calm, hard, tmp_path
):
    def engine(federation, stage):
        made = Without(federation)
        made.missing = {
            (row["round"], client) for row in hard.run.metrics() for client in row["dropped"]
        }
        return made

    assert_same(hard.run, in_process(calm.recipe, tmp_path / "here", SETTINGS, engine=engine))


@pytest.mark.parametrize(
    ("at", "fault", "words"),
    [
        (0, "raises", "its node failed: <class 'RuntimeError'>:<'no data here'> (code 2)"),
        (0, "NaN", "not finite"),
        (0, "late", "no reply within {} s"),
        (1, "other shapes", "bytes, not"),
    ],
)
def test_a_fault_is_named(hard, at, fault, words):
    (client,) = [client for client, what in hard.faults[at].items() if what == fault]
    assert words.format(hard.deadline) in hard.run.metrics()[at]["dropped"][str(client)]


def test_only_those_who_failed_are_dropped(hard):
    assert len(hard.run.metrics()[0]["dropped"]) == len(FIRST) - 1
    assert hard.run.metrics()[2]["dropped"] == {}


def test_the_late_reply_came_in_the_next_round(hard):
    assert hard.late_answered


def test_a_node_killed_in_a_round_is_named_and_the_round_ends_with_the_others(hard):
    row = hard.run.metrics()[1]
    silent = {
        client: why for client, why in row["dropped"].items() if int(client) not in hard.faults[1]
    }
    assert silent
    assert all(why.startswith(("no reply within", "its node failed: ")) for why in silent.values())
    begun = {
        note.rpartition("-")[2]: node
        for note, node in hard.notes.items()
        if note.startswith("round-1-")
    }
    assert {client for client, node in begun.items() if node == hard.victim} <= set(silent)
    assert row["engine"]["answered"] > 1


def test_the_node_and_the_superlink_that_were_restarted_take_part_again(site, hard):
    assert trained(site, hard.victim) > 0
    assert hard.run.metrics()[:2] == hard.before


def test_what_a_killed_superlink_leaves_behind_keeps_the_run_folder_until_it_is_ended(hard):
    assert hard.taken  # its ServerApp lives on for some seconds, and could write
    assert hard.left == set()
