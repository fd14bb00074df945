"""The paper's tasks from the command line: on small folders, and on real data in FJORD_DATA."""

import json
import os
import re
from pathlib import Path

import commands
import pytest
import torch
from folders import needs, pictures, small_cifar, small_femnist, write
from torch import nn

from fjord.core.seeding import derive_seed
from fjord.data.cifar10 import PREPARE
from fjord.data.federated import GeneratedData, TestSet
from fjord.elastic.elasticize import elasticize
from fjord.experiments.recipes.find import apply_settings
from fjord.experiments.recipes.paper import RECIPES
from fjord.training.local import ClientTrainer, LocalTraining
from fjord.training.objective import ordered_dropout

SHORT = ["num_rounds=3", "eval_every=2", "cohort_size=3", "max_local_steps=2", "widths=1/5,2/5"]


def fjord(folder: Path, *arguments: str) -> str:
    """Run a command as a user does, in a folder of its own."""
    done = commands.fjord(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(folder: Path, recipe: str, *settings: str) -> list[dict]:
    """Run a recipe, shortened, and return its metrics."""
    fjord(
        folder,
        "run",
        recipe,
        *(f"--set={s}" for s in (*SHORT, *settings)),
        "--output",
        recipe,
        "--no-page",
    )
    return [
        json.loads(line) for line in (folder / recipe / "metrics.jsonl").read_text().splitlines()
    ]


def small_emnist(folder: Path) -> Path:
    write(folder, "test", image=pictures(6, 28, 28, seed=1), label=[5, 4, 3, 2, 1, 0])
    return write(folder, image=pictures(60, 28, 28), label=[i % 62 for i in range(60)])


def small_plays(folder: Path) -> Path:
    folder.mkdir()
    roles = [
        {"client": f"r{i}", "speeches": [["To be", "or not"], ["that is"], ["the"]]}
        for i in range(12)
    ]
    (folder / "roles.jsonl").write_text("".join(json.dumps(role) + "\n" for role in roles))
    return folder


TINY = {
    "cifar10": (small_cifar, ["data.num_clients=8"]),
    "femnist": (small_femnist, []),
    "femnist-digits": (small_femnist, []),
    "emnist-skewed": (small_emnist, ["data.num_clients=10", "data.partition=iid"]),
    "shakespeare": (small_plays, ["data.max_clients=9"]),
}


@pytest.mark.parametrize("recipe", TINY)
def test_each_task_runs_from_a_folder(tmp_path, monkeypatch, recipe):
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    make, settings = TINY[recipe]
    source = make(tmp_path / "source")
    rows = run(tmp_path, recipe, f"data.source={source}", *settings)
    assert len(rows) == 3
    assert all(row["examples"] > 0 and not row["dropped"] for row in rows)
    assert set(rows[-1]["scores"]) == {"1/5", "2/5"}
    shown = fjord(
        tmp_path, "data", recipe, f"--set=data.source={source}", *(f"--set={s}" for s in settings)
    )
    assert {"cifar10": "8", "emnist-skewed": "10", "shakespeare": "9"}.get(
        recipe, "clients"
    ) in shown


@pytest.mark.soak
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param("cifar10", marks=needs("cifar10")),
        pytest.param("femnist-digits", marks=needs("femnist_digits")),
        pytest.param("emnist-skewed", marks=needs("emnist_byclass")),
        pytest.param("shakespeare", marks=needs("shakespeare")),
    ],
)
def test_each_task_runs_on_real_data(tmp_path, decoded, monkeypatch, recipe):
    monkeypatch.setenv("FJORD_CACHE", str(decoded))
    rows = run(
        tmp_path, recipe, "widths=1/5", "num_rounds=2"
    )  # the whole test set is scored once, at the end
    assert [row["round"] for row in rows] == [0, 1]
    assert rows[-1]["scores"]["1/5"]["loss"] < 6
    assert "FJORD_DATA" in os.environ


def test_a_resumed_run_finds_a_folder_named_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path / "cache"))
    small_plays(tmp_path / "plays")
    run(tmp_path, "shakespeare", "data.source=plays")
    (tmp_path / "elsewhere").mkdir()
    assert "perplexity" in fjord(
        tmp_path / "elsewhere", "run", "--resume", str(tmp_path / "shakespeare"), "--no-page"
    )


def test_a_client_sees_augmented_images_by_name_and_tests_see_the_centre():
    images, labels = (
        torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8),
        torch.zeros(5, dtype=torch.long),
    )
    test = TestSet(images, labels, torch.full((5,), -1), PREPARE)
    data = GeneratedData(1, lambda client: (images, labels), test, prepare=PREPARE)
    model = elasticize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)), test.batch(0, 2)[0])
    trainer = ClientTrainer(
        model, data, LocalTraining(ordered_dropout(), batch_size=3, epochs=2), seed=4
    )
    found = [x for x, _ in trainer._batches(images, labels, 77)]
    for epoch in range(2):
        order = torch.randperm(
            5, generator=torch.Generator().manual_seed(derive_seed(77, "order", epoch))
        )
        augment = torch.Generator().manual_seed(derive_seed(77, "augment", epoch))
        for seen, rows in zip(found[2 * epoch : 2 * epoch + 2], order.split(3), strict=True):
            assert torch.equal(seen, PREPARE(images[rows], augment))
    assert not torch.equal(found[0], found[2])
    assert torch.equal(test.batch(1, 3)[0], PREPARE(images[1:3], None))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_wrong_option_of_the_data_is_refused_with_those_there_are(tmp_path, recipe):
    done = commands.fjord("run", recipe, "--set", "data.color=red", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "--set data.color=red: is not an option of the recipe's data; known: source" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_only_with_the_data_it_began_with(tmp_path, monkeypatch):
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path / "cache"))
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        small_plays(tmp_path / name / "shakespeare")
    changed = tmp_path / "other" / "shakespeare" / "roles.jsonl"
    changed.write_text(changed.read_text().replace("To be", "Be to"))
    monkeypatch.setenv("FJORD_DATA", str(tmp_path / "one"))
    run(tmp_path, "shakespeare")
    monkeypatch.setenv("FJORD_DATA", str(tmp_path / "other"))
    done = commands.fjord("run", "--resume", "shakespeare", "--no-page", cwd=tmp_path)
    assert done.returncode == 2
    assert "was begun with data_digest=" in done.stderr


def test_the_options_of_the_data_are_shown_and_kept_to_their_types(tmp_path, monkeypatch):
    monkeypatch.setenv("FJORD_CACHE", str(tmp_path / "cache"))
    assert re.search(r"data.partition +│ iid ", fjord(tmp_path, "show", "cifar10"))
    assert re.search(
        r"data.max_clients +│ null ",
        fjord(tmp_path, "show", "shakespeare", "--set=data.max_clients=none"),
    )
    for setting in (
        "data.partition=none",
        "data.partition=dirichlet",
        "data.num_clients=none",
        "data.source=",
    ):
        with pytest.raises(ValueError, match=setting.split("=")[0].removeprefix("data.")):
            apply_settings(
                RECIPES["cifar10"](), [f"data.source={small_cifar(tmp_path / 'c')}", setting]
            ).data(0)
