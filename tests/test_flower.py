"""FjORD on Flower: the weights of the in-process engine, bytes of the slice only, and faults that are named."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

import fjord
from fjord.app import device, serve
from fjord.cli import main
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.elastic.slice import places, taken
from fjord.engines.flower import codec
from fjord.engines.flower.client import client_app
from fjord.engines.flower.codec import decode_task, encode_task, encode_update, pack, unpack
from fjord.engines.flower.engine import Order, Patience
from fjord.engines.flower.grid import LocalGrid, content_bytes
from fjord.engines.flower.submit import write_app
from fjord.engines.inprocess import InProcess
from fjord.local import Task, Update, size
from fjord.models.catalog import PAPER
from fjord.recipes.find import apply_settings, find_recipe, sources
from fjord.runner import run
from fjord.runs import RunFolder
from fjord.width import Width, uniform
from network import cut_off

RECIPE = """
import os, signal
import torch
from torch import nn
import fjord


def make(client):
    g = torch.Generator().manual_seed(client)
    x = torch.randn(9 + client, 3, 4, 4, generator=g)
    return x, (x.mean((2, 3)) + 0.1 * torch.randn(9 + client, 3, generator=g)).argmax(1)


def data(seed):
    x, y = make(99)
    return fjord.Generated(6, make, fjord.TestSet(x, y, torch.arange(len(x)) % 6), remembered=0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bn1 = nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.second, self.bn2 = nn.Conv2d(10, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.relu(self.bn1(self.first(x)))
        x = torch.relu(x + self.bn2(self.second(x)))
        return self.head(x.mean((2, 3)))


def recipe():
    return fjord.Experiment(
        name="tiny", model=Block, data=data, method="fjord-kd", widths=fjord.uniform(5), tiers="uniform-5",
        num_rounds=2, cohort_size=5, batch_size=4, eval_every=1, checkpoint_seconds=0.0, workers=1,
    )
"""
PATIENCE = Patience(20.0)
METHODS = [
    ("method=fjord-kd",),
    ("method=fedrolex", "momentum=0.9"),
    ("method=fjord-efd", "prox=0.1", "busy=1/2"),
    ("method=efd", "widths=uniform-2", "tiers=uniform-2"),
    ("scaffold=true", "server=fedadam"),
    ("nova=true", "norms=shared"),
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("flower") / "tiny.py"
    path.write_text(RECIPE)
    return str(path)


def in_process(recipe, folder, settings=(), engine=None):
    experiment = apply_settings(find_recipe(recipe)(), settings)
    return run(experiment, folder, recipe={"name": recipe, "set": list(settings)}, engine=engine)


def over_grid(recipe, folder, settings=(), *, nodes=({}, {}, {}), spoil=None, patience=PATIENCE, resume=False):
    grid = LocalGrid(client_app(device), nodes, spoil)
    return serve(grid, Order(recipe, tuple(settings)), patience, folder, resume=resume)


def assert_same(mine: RunFolder, wanted: RunFolder) -> None:
    files = sorted(path.name for path in wanted.path.glob("model*.safetensors"))
    assert files
    assert files == sorted(path.name for path in mine.path.glob("model*.safetensors"))
    for name in files:
        here, there = load_file(mine.path / name), load_file(wanted.path / name)
        assert here.keys() == there.keys()
        assert all(here[key].numpy().tobytes() == there[key].numpy().tobytes() for key in there)
    assert bare(mine) == bare(wanted)


def bare(run: RunFolder) -> list[dict]:
    """Return the metrics without time and messages, and without the words for who was dropped."""
    rows = [{**row, "seconds": 0, "dropped": sorted(row["dropped"])} for row in run.metrics()]
    return [{key: value for key, value in row.items() if key != "engine"} for row in rows]


@pytest.mark.parametrize("settings", METHODS, ids=" ".join)
def test_a_grid_gives_the_weights_of_the_in_process_engine_bit_for_bit(recipe, tmp_path, settings):
    wanted = in_process(recipe, tmp_path / "here", settings)
    found = over_grid(recipe, tmp_path / "there", settings)
    assert_same(found, wanted)
    assert all(row["engine"]["late"] == row["engine"]["failed"] == 0 for row in found.metrics())


def test_slices_too_large_to_travel_beside_the_head_arrive_as_well(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "INLINE", 100)
    assert_same(
        over_grid(recipe, tmp_path / "grid", ("scaffold=true",)),
        in_process(recipe, tmp_path / "in", ("scaffold=true",)),
    )


def test_ray_gives_the_weights_of_the_in_process_engine_and_leaves_nothing_running(recipe, tmp_path):
    wanted = in_process(recipe, tmp_path / "here")
    words = ["run", recipe, "--engine", "flower-sim", "--output", "there", "--no-page", "--set", "workers=2"]
    with cut_off():  # it asks no network, where the kernel lets us see that
        done = subprocess.run(
            [sys.executable, "-m", "fjord.cli", *words],
            cwd=tmp_path,
            env={**os.environ, "MARK_OF_TEST": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "network_util" not in line] == []  # Ray misses the network
    assert_same(RunFolder(tmp_path / "there"), wanted)
    if sys.platform == "linux":
        assert not [p for p in Path("/proc").glob("[0-9]*/environ") if str(tmp_path).encode() in read(p)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@cache
def elastic(name: str) -> ElasticModel:
    entry = PAPER[name]()
    return elasticize(entry.model, *entry.inputs, widths=uniform(5), freeze=entry.freeze)


def slice_of(name: str, width: str) -> tuple[Task, Update, ElasticModel]:
    model, space = elastic(name), uniform(5).upto(width)
    held = model.plan.ordered(Width(width))
    tensors = taken(model, places(model, held, space.widths))
    counts = dict.fromkeys(space.widths, 7)
    return Task(3, 1, 0.1, held, space, tensors), Update(3, tensors, 9, 0.5, counts, counts, 10**12), model


@pytest.mark.parametrize("width", ["1/5", "2/5", "3/5", "4/5", "1"])
@pytest.mark.parametrize("name", PAPER)
def test_a_message_is_the_slice_and_at_most_two_percent_more(name, width):
    task, update, model = slice_of(name, width)
    down = encode_task(task, model.plan, Order("shakespeare", ("seed=1", "num_rounds=20")).fields())
    up = encode_update(task, update)
    weights = sum(tensor.numel() for tensor in task.tensors.values())
    for content in (down, up):
        assert content_bytes(content) <= 1.02 * 4 * weights
    if name == "resnet18" and width == "1/5":
        assert 23 < 44.7e6 / content_bytes(down) < 25


def test_what_is_decoded_is_what_was_encoded(recipe):
    federation = next(apply_settings(find_recipe(recipe)(), ["method=fedrolex", "scaffold=true"]).federations())
    for task in [*federation.tasks(0), *federation.tasks(3)]:
        head, blocks = unpack(encode_task(task, federation.model.plan, {}))
        assert ("mask" in head) == (task.round_index == 3 and min(map(len, task.held.values())) < 10)
        found = decode_task(head, blocks, federation.model, federation.places)
        assert (found.client_id, found.round_index, found.lr) == (task.client_id, task.round_index, task.lr)
        assert found.space == task.space
        for name in ("held", "tensors", "correction"):
            mine, theirs = getattr(found, name), getattr(task, name)
            assert list(mine) == list(theirs)
            assert all(mine[key].dtype == theirs[key].dtype for key in theirs)
            assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def rewritten(content: RecordDict, data=None, **changes) -> RecordDict:
    head, blocks = unpack(content)
    return pack({**head, **changes}, {"slice": blocks["slice"] if data is None else data(blocks["slice"])})


def with_head(content: RecordDict, head: str) -> RecordDict:
    return RecordDict({"fjord": ConfigRecord({**content["fjord"], "head": head})})


def as_arrays(content: RecordDict, arrays: ArrayRecord) -> RecordDict:
    """Send the slice in the way of large ones."""
    return RecordDict({"fjord": ConfigRecord({"head": content["fjord"]["head"]}), "large": arrays})


def without_field(content: RecordDict, name: str) -> RecordDict:
    head, blocks = unpack(content)
    return pack({key: value for key, value in head.items() if key != name}, blocks)


WRONG = {
    "truncated": (lambda c: rewritten(c, lambda data: data[:-1]), "bytes, not"),
    "too long": (lambda c: rewritten(c, lambda data: data + b"1234"), "bytes, not"),
    "one-wide": (lambda c: rewritten(c, lambda data: data[: 4 * 27]), "bytes, not"),
    "NaN": (lambda c: rewritten(c, lambda data: data[:-4] + b"\x00\x00\xc0\x7f"), "not finite"),
    "another dtype": (lambda c: as_arrays(c, ArrayRecord({"slice": Array(torch.zeros(4).numpy())})), "not uint8"),
    "other keys": (lambda c: as_arrays(c, ArrayRecord([torch.zeros(1).numpy()])), "not uint8"),
    "no slice": (lambda c: pack(unpack(c)[0], {}), "it has no 'slice'"),
    "no head": (lambda c: RecordDict({"fjord": ConfigRecord()}), "it has no 'head'"),
    "empty": (lambda c: RecordDict(), "it has no 'fjord'"),
    "no JSON": (lambda c: with_head(c, "{"), "Expecting"),
    "a list": (lambda c: with_head(c, "[1]"), "not a JSON object"),
    "deep": (lambda c: with_head(c, "[" * 100_000), "recursion"),
    "no loss": (lambda c: without_field(c, "loss"), "it has no 'loss'"),
    "another client": (lambda c: rewritten(c, client=5), "the update of client 5"),
    "a list for a client": (lambda c: rewritten(c, client=[1]), "the update of client [1]"),
    "another round": (lambda c: rewritten(c, round=9), "answers round 9"),
    "no examples": (lambda c: rewritten(c, examples=0), "num_examples is 0"),
    "examples as text": (lambda c: rewritten(c, examples="many"), "num_examples is 'many'"),
    "examples as nothing": (lambda c: rewritten(c, examples=None), "num_examples is None"),
    "loss NaN": (lambda c: rewritten(c, loss=float("nan")), "loss is nan"),
    "loss as a list": (lambda c: rewritten(c, loss=[1.0]), "loss is [1.0]"),
    "macs as an object": (lambda c: rewritten(c, macs={}), "macs is {}"),
    "steps of other widths": (lambda c: rewritten(c, steps=[1] * 9), "zip()"),
    "steps as a number": (lambda c: rewritten(c, steps=3), "for a list of counts"),
    "steps of text": (lambda c: rewritten(c, steps=["1"] * len(unpack(c)[0]["steps"])), "steps is not a number"),
    "negative steps": (lambda c: rewritten(c, reach=[-1] * len(unpack(c)[0]["reach"])), "reach is not a number"),
}


def in_first_round(client: int, spoil):
    """Spoil what one client answers in the first round."""

    def on_reply(message, reply):
        if message.metadata.message_type != "train":
            return reply
        head, _ = unpack(message.content)
        return spoil(message, reply) if (head["client"], head["round"]) == (client, 0) else reply

    return on_reply


class Without(InProcess):
    """The in-process engine, without one client in the first round."""

    def train(self, tasks):
        for task, reply in super().train(tasks):
            yield task, "left out" if (task.client_id, task.round_index) == (1, 0) else reply


@pytest.fixture(scope="module")
def without(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("without") / "run"
    return in_process(recipe, folder, engine=lambda federation, trainer, _: Without(trainer, federation.data.test))


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_reply_is_named_and_leaves_no_trace(recipe, tmp_path, without, fault):
    change, words = WRONG[fault]
    spoil = in_first_round(1, lambda message, reply: Message(change(reply.content), reply_to=message))
    found = over_grid(recipe, tmp_path / "run", spoil=spoil)
    assert words in found.metrics()[0]["dropped"]["1"]
    assert found.metrics()[0]["engine"] == {"deadline": 20.0, "sent": 5, "answered": 5, "late": 0, "failed": 0}
    assert_same(found, without)


def test_a_client_that_raises_and_one_that_never_answers_are_named(recipe, tmp_path, without):
    failed = in_first_round(1, lambda message, reply: Message(Error(2, "a\nValueError: no data"), reply_to=message))
    found = over_grid(recipe, tmp_path / "failed", spoil=failed)
    assert found.metrics()[0]["dropped"] == {"1": "its node failed: ValueError: no data (code 2)"}
    assert found.metrics()[0]["engine"]["failed"] == 1
    assert_same(found, without)
    silent = in_first_round(1, lambda message, reply: None)
    found = over_grid(recipe, tmp_path / "silent", spoil=silent, patience=Patience(0.8))
    assert found.metrics()[0]["dropped"] == {"1": "no reply within 0.8 s"}
    assert found.metrics()[0]["engine"]["late"] == 1
    assert_same(found, without)


def test_a_reply_after_the_deadline_changes_nothing(recipe, tmp_path, without):
    late = []

    def spoil(message, reply):
        late.append(message.metadata.message_id)
        arrive = lambda: grid.replies.__setitem__(message.metadata.message_id, reply)  # noqa: E731
        threading.Timer(0.9, arrive).start()

    grid = LocalGrid(client_app(device), [{}], in_first_round(1, spoil))
    found = serve(grid, Order(recipe), Patience(0.8), tmp_path / "run")
    assert found.metrics()[0]["dropped"] == {"1": "no reply within 0.8 s"}
    assert_same(found, without)
    assert len(late) == 1


def test_a_message_expires_before_the_deadline(recipe, tmp_path):
    lives = []
    spoil = lambda message, reply: lives.append(message.metadata.ttl) or reply  # noqa: E731
    over_grid(recipe, tmp_path / "run", ["num_rounds=1"], spoil=spoil, patience=Patience(40.0))
    assert all(30 < life < 38 for life in lives[3:])  # the first three are queries


def test_too_few_good_replies_leave_the_model_as_it_was(recipe, tmp_path):
    spoil = in_first_round(1, lambda message, reply: Message(WRONG["NaN"][0](reply.content), reply_to=message))
    found = over_grid(recipe, tmp_path / "run", ["num_rounds=1"], spoil=spoil, patience=Patience(20.0, min_replies=5))
    row = found.metrics()[0]
    assert row["examples"] == 0
    assert sorted(set(row["dropped"].values())) == ["left out: 4 of the 5 replies that a round needs were good"]
    start = next(find_recipe(recipe)().federations()).model.state_dict()
    end = load_file(found.path / "model.safetensors")
    assert all(torch.equal(end[key], start[key]) for key in start)
    enough = over_grid(recipe, tmp_path / "enough", spoil=spoil, patience=Patience(20.0, min_replies=4))
    assert len(enough.metrics()[0]["dropped"]) == 1


def test_a_node_that_is_one_client_gets_that_client_only_and_no_more_than_it_can_carry(recipe, tmp_path):
    nodes = [{"client-id": 0, "ceiling": "2/5"}, {"client-id": 4}, {"client-id": 1, "ceiling": "1/10"}]
    sent = []

    def spoil(message, reply):
        if message.metadata.message_type == "train":
            task, _ = unpack(message.content)
            sent.append((message.metadata.dst_node_id, task["client"], task["widths"]))
        return reply

    found = over_grid(recipe, tmp_path / "run", ["cohort_size=6", "tiers=1:1"], nodes=nodes, spoil=spoil)
    assert {(node, client) for node, client, _ in sent} == {(100, 0), (101, 4)}
    assert {widths for _, client, widths in sent if client == 0} == {"1/5:1/2,2/5:1/2"}
    dropped = found.metrics()[0]["dropped"]
    assert dropped["1"] == "the ceiling of its node, 1/10, is below the smallest width 1/5"
    assert dropped["2"] == "no usable node is connected for it"


@pytest.mark.parametrize("method", ["fjord", "fjord-efd", "fedrolex", "fedavg"])
def test_a_node_that_is_nobody_is_sent_no_more_than_it_can_carry(recipe, tmp_path, method):
    """Held against the bytes of the plain submodels that the two nodes name."""
    widest, sent = {100: "2/5", 101: "4/5"}, {100: [], 101: []}
    model = next(apply_settings(find_recipe(recipe)(), ["norms=shared"]).federations()).model
    allowed = {node: size(model.cut(width).state_dict()) for node, width in widest.items()}

    def spoil(message, reply):
        if message.metadata.message_type == "train":
            sent[message.metadata.dst_node_id].append(len(unpack(message.content)[1]["slice"]))
        return reply

    settings = [f"method={method}", "norms=shared", "cohort_size=6"]
    nodes = [{"ceiling": width} for width in widest.values()]
    found = over_grid(recipe, tmp_path / "run", settings, nodes=nodes, spoil=spoil).metrics()
    assert all(part <= allowed[node] for node, parts in sent.items() for part in parts)
    reasons = {why for row in found for why in row["dropped"].values()}
    assert reasons == {"the ceiling of any node is at most 4/5, and it would have to carry 1"}
    assert any(sent.values()) == (method != "fedavg")


def test_a_node_finds_the_plan_of_a_model_once_though_each_message_has_a_new_process(recipe, tmp_path, monkeypatch):
    found = []
    real = fjord.experiment.elasticize
    monkeypatch.setattr("fjord.experiment.elasticize", lambda *a, **k: found.append(1) or real(*a, **k))
    settings = ("method=single", "widths=uniform-2", "tiers=uniform-2", "cohort_size=4")
    wanted = in_process(recipe, tmp_path / "here", settings)
    before = len(found)
    grid = LocalGrid(client_app(device.__wrapped__), [{}, {}])  # which remembers nothing itself
    mine = serve(grid, Order(recipe, settings), PATIENCE, tmp_path / "there")
    assert len(found) == before * 2 + 2 * 2  # the server once for each of the two models, and each node
    assert_same(mine, wanted)


def test_nodes_that_are_nobody_share_the_clients(recipe, tmp_path):
    sent = []
    spoil = lambda message, reply: sent.append(message.metadata.dst_node_id) or reply  # noqa: E731
    over_grid(
        recipe, tmp_path / "run", ["num_rounds=1", "cohort_size=6"], nodes=[{}, {"client-id": 5}, {}], spoil=spoil
    )
    trained = sent[3:]
    assert trained.count(101) == 1
    assert {trained.count(100), trained.count(102)} == {2, 3}


def test_a_node_that_did_not_answer_is_spared_in_the_next_round(recipe, tmp_path):
    sent = []

    def spoil(message, reply):
        if message.metadata.message_type != "train":
            return reply
        sent.append((unpack(message.content)[0]["round"], message.metadata.dst_node_id))
        return None if message.metadata.dst_node_id == 101 else reply

    over_grid(recipe, tmp_path / "run", ["num_rounds=3"], spoil=spoil, patience=Patience(0.5))
    assert {number: {node for at, node in sent if at == number} for number in range(3)} == {
        0: {100, 101, 102},
        1: {100, 102},
        2: {100, 101, 102},
    }


def test_a_node_that_makes_no_sense_is_not_used_and_named(recipe, tmp_path):
    found = over_grid(recipe, tmp_path / "run", nodes=[{"ceiling": "wide"}], patience=Patience(1.0))
    assert "node 100: ceiling: width 'wide' is not a fraction" in found.metrics()[0]["dropped"]["1"]


def test_no_node_at_all_is_said(recipe, tmp_path):
    found = over_grid(recipe, tmp_path / "run", nodes=[], patience=Patience(0.2))
    assert set(found.metrics()[1]["dropped"].values()) == {"no usable node is connected for it"}


KILLED = """
import os, signal, sys
from pathlib import Path
import fjord
from fjord.app import device, serve
from fjord.engines.flower import codec
from fjord.engines.flower.client import client_app
from fjord.engines.flower.engine import Order, Patience
from fjord.engines.flower.grid import LocalGrid

def die(message, reply):
    if message.metadata.message_type == "train" and codec.unpack(message.content)[0]["round"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

settings = ("num_rounds=4", "scaffold=true", "server=fedadam")
serve(LocalGrid(client_app(device), [{}], die), Order(sys.argv[1], settings), Patience(20.0), Path(sys.argv[2]))
"""


def test_a_server_killed_in_a_round_goes_on_to_the_same_weights(recipe, tmp_path):
    settings = ("num_rounds=4", "scaffold=true", "server=fedadam")
    done = subprocess.run([sys.executable, "-c", KILLED, recipe, str(tmp_path / "there")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(RunFolder(tmp_path / "there").metrics()) == 2
    found = over_grid(recipe, tmp_path / "there", settings, resume=True)
    assert_same(found, in_process(recipe, tmp_path / "here", settings))


def test_the_app_that_is_written_names_what_exists(tmp_path):
    write_app(tmp_path)
    for side in ("server", "client"):
        names: dict = {"__file__": str(tmp_path / "fjord_app" / f"{side}.py")}
        exec((tmp_path / "fjord_app" / f"{side}.py").read_text(), names)
        assert type(names["app"]).__name__ == f"{side.title()}App"
    assert 'recipe = "demo"' in (tmp_path / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "--engine", "flower-sim"], "--engine flower-sim"),
        (["run", "--engine", "flower", "--superlink", "fleet"], "--engine flower"),
        (["fleet", "status"], "fjord fleet"),
        (["app"], "fjord app"),
    ],
)
def test_where_flower_is_missing_the_message_says_what_to_install(words, what, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "flwr", None)  # as if it could not be found
    monkeypatch.setattr(sys, "argv", ["fjord", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main()
    wanted = f"fjord: {what} needs Flower; install it with: pip install 'fjord-fl[flower]', or in a clone: "
    assert capsys.readouterr().err.startswith(wanted)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_is_sent_with_what_it_imported_from_beside_it_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = tmp_path / "mine"
    (mine / "parts").mkdir(parents=True)
    (mine / "test_mine.py").write_text(
        f"import parts.depths, torch, fjord\n{RECIPE}\n"
    )  # Flower would leave test_*.py out
    (mine / "parts" / "__init__.py").touch()
    (mine / "parts" / "depths.py").write_text("DEPTH = 2\n")
    (mine / "secrets.py").write_text("KEY = 1\n")
    name = f"{mine / 'test_mine.py'}:recipe"
    find_recipe(name)
    files = sources(name)
    assert set(files) == {"recipe.py", "beside/parts/__init__.py", "beside/parts/depths.py"}
    write_app(tmp_path / "app", files)
    for module in ("parts", "parts.depths"):
        monkeypatch.delitem(sys.modules, module)
    shutil.rmtree(mine)
    sys.path.remove(str(mine))
    sent = tmp_path / "app" / "fjord_app" / "sent"
    assert find_recipe(name, sent)().name == "tiny"
    assert sys.modules["parts.depths"].__file__ == str(sent / "beside" / "parts" / "depths.py")
    with pytest.raises(ValueError, match="there is no file"):
        find_recipe(name)
    assert sources("demo") == {}


@pytest.mark.parametrize("value", [{"deadline": 0}, {"deadline": float("nan")}, {"min_replies": 0}])
def test_patience_is_checked_at_the_door(value):
    with pytest.raises(ValueError, match=f"{next(iter(value))}="):
        replace(Patience(), **value)
