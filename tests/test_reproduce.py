"""The reproduction: runs are shared, resumed and named when they fail; verdicts and results from made-up runs."""

import json
import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

import fjord
from fjord.cli.reproduce import reproduce, results
from fjord.recipes.find import apply_settings, find_recipe
from fjord.report.groups import Run
from fjord.reproduce import claims, compare, costs, figures, scales
from fjord.reproduce.curves import CURVES, TASKS, Job, Task, job
from fjord.reproduce.figures import FIGURES, Figure, all_jobs
from fjord.reproduce.folders import state
from fjord.reproduce.measured import measure
from fjord.reproduce.pack import pack
from fjord.reproduce.results import make, read_notes
from fjord.reproduce.work import Work, command
from fjord.runs import RunFolder
from fjord.width import Width

ROOT = Path(__file__).parents[1]
MINE = """
import torch
from torch import nn

import fjord


def net():
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))


def data(seed, broken=0):
    if broken:
        raise ValueError(f"the data is broken by {broken}")
    x = torch.randn(120, 4)
    y, clients = x[:, :3].argmax(1), torch.arange(120) % 6
    return fjord.partition((x[:96], y[:96]), clients[:96], (x[96:], y[96:]), clients[96:])


def recipe():
    return fjord.Experiment(name="toy", model=net, data=data, num_rounds=4, cohort_size=3, eval_every=2, workers=1)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A task over a recipe of a file, with a figure of two curves and one that cannot run."""
    (tmp_path / "mine.py").write_text(MINE)
    task = Task("toy", "Toy", f"{tmp_path / 'mine.py'}:recipe", column="cifar10")
    monkeypatch.setitem(TASKS, "toy", task)
    monkeypatch.setitem(FIGURES, "toy", Figure("toy", "Toy", ("fjord", "fedavg"), tasks=("toy",), default=("toy",)))
    return task


def test_a_folder_that_is_not_there_is_said_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"--runs .*none: there is no such folder"):
        reproduce("fig5", runs=tmp_path / "none", only_report=True)
    with pytest.raises(ValueError, match=r"RUNS .*none: there is no such folder"):
        results(tmp_path / "none", tmp_path / "RESULTS.md")
    assert not list(tmp_path.iterdir())


class Listener:
    def __init__(self):
        self.heard = []

    def begun(self, job, how):
        self.heard.append((job.name, how))

    def looked(self, job):
        pass

    def ended(self, job, failure):
        self.heard.append((job.name, failure))


def without_time(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(folder).metrics()]


def test_a_figure_runs_what_is_missing_resumes_what_is_unfinished_and_uses_what_is_there(toy, tmp_path, capsys):
    runs, laptop = tmp_path / "runs", scales.SCALES["laptop"]
    begun, fresh = (job(toy, CURVES[name], laptop, 0) for name in ("fjord", "fedavg"))
    whole = apply_settings(find_recipe(begun.recipe)(), begun.all_settings)
    fjord.run(whole, tmp_path / "whole")

    def stop(record, done, total):
        if done == 3:
            raise KeyboardInterrupt

    known = {"name": begun.recipe, "set": begun.all_settings}
    with pytest.raises(KeyboardInterrupt):
        fjord.run(
            fjord.Experiment(**{**vars(whole), "checkpoint_seconds": 0}), runs / begun.name, recipe=known, on_round=stop
        )
    assert [state(one, runs) for one in (begun, fresh)] == ["unfinished", "missing"]
    reproduce("toy", runs=runs, seeds="0", workers=2)
    said = capsys.readouterr().out
    assert "2 runs in" in said
    assert "0 finished, 1 unfinished, 1 missing" in said
    assert f"{begun.name}: resumed" in said
    assert f"{fresh.name}: started" in said
    assert without_time(runs / begun.name) == without_time(tmp_path / "whole")
    told = json.loads((runs / "figures" / "toy.json").read_text())
    assert [curve["runs"] for curve in told["curves"]] == ["toy/fjord/0", "toy/fedavg/0"]
    last = RunFolder(runs / begun.name).metrics()[-1]["scores"]
    assert {w: 100 * s["accuracy"] for w, s in last.items()} == {
        w: values["0"] for w, values in told["curves"][0]["points"].items()
    }
    assert (runs / "figures" / "toy.png").stat().st_size > 5000
    reproduce("toy", runs=runs, seeds="0", workers=2)
    said = capsys.readouterr().out
    assert "2 finished, 0 unfinished, 0 missing" in said
    assert "started" not in said


def test_a_failed_run_is_named_and_the_others_go_on(toy, tmp_path):
    laptop, listener = scales.SCALES["laptop"], Listener()
    good = job(toy, CURVES["fjord"], laptop, 0)
    bad = Job("toy/broken", good.recipe, (*good.settings, "data.broken=7"), 0)
    work = Work(tmp_path / "runs", [bad, good], 1, listener)
    work.run()
    assert list(work.failed) == ["toy/broken/0"]
    assert "the data is broken by 7" in (tmp_path / "runs" / "logs" / "toy-broken-0.log").read_text()
    assert listener.heard[-2:] == [("toy/fjord/0", "started"), ("toy/fjord/0", None)]
    assert state(good, tmp_path / "runs") == "finished"


def test_a_folder_with_other_settings_is_refused_by_name(toy, tmp_path):
    one = job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    config = apply_settings(find_recipe(one.recipe)(), one.all_settings).config()
    RunFolder.create(tmp_path / one.name, {**config, "lr": 0.3})
    with pytest.raises(ValueError, match=r"toy/fjord/0: was run with lr=0.3, here it is 0.1; name another folder"):
        state(one, tmp_path)


def test_a_setting_that_is_younger_than_a_run_had_its_default(toy, tmp_path):
    one = job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    config = apply_settings(find_recipe(one.recipe)(), one.all_settings).config()
    del config["prox"], config["data"]
    RunFolder.create(tmp_path / one.name, {**config, "data": "data"})
    assert state(one, tmp_path) == "unfinished"
    with pytest.raises(ValueError, match=r"prox=None, here it is 0\.5"):
        state(Job(one.place, one.recipe, (*one.settings, "prox=0.5"), 0), tmp_path)


def test_two_processes_do_not_work_on_one_run(toy, tmp_path):
    from fjord.reproduce.work import _lock

    one = job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    with _lock(tmp_path, one):
        work = Work(tmp_path, [one], 1, Listener())
        work.run()
    assert work.failed == {"toy/fjord/0": "another process is at work on it"}


def test_figures_share_their_runs_and_the_first_seed_comes_first():
    laptop = scales.SCALES["laptop"]
    federated = [FIGURES[name] for name in ("fig4", "fig5", "fig6", "fig7", "convergence", "fd-efd")]
    jobs = all_jobs(federated, ("emnist-skewed",), laptop, None)
    names = [one.name for one in jobs]
    assert len(names) == len(set(names)) == 7 * 3
    assert [one.seed for one in jobs] == [0] * 7 + [1] * 7 + [2] * 7
    assert {one.place.split("/")[1] for one in jobs} == {
        "fjord-kd", "fjord", "efd", "fjord-efd", "fd", "fjord-kd-u10", "fjord-kd-ds05"
    }  # fmt: skip
    (cifar,) = [one for one in all_jobs([FIGURES["fig5"]], None, laptop, None) if one.name == "cifar10/fjord/0"]
    assert cifar.settings == ("num_rounds=100", "eval_every=20", "method=fjord", "workers=1")
    assert command(cifar, Path("runs"))[3:8] == ["run", "cifar10", "--output", "runs/cifar10/fjord/0", "--seed"]


def test_every_curve_at_every_scale_is_a_setting_that_can_be_made():
    for scale in scales.SCALES.values():
        wanted = tuple(TASKS)
        for one in all_jobs(list(FIGURES.values()), wanted, scale, (0,)):
            from fjord.reproduce.folders import wanted as config

            assert config(one)["seed"] == 0
    paper = {one.name: one for one in all_jobs([FIGURES["fig3"]], None, scales.SCALES["paper"], (0,))}
    numbers = {name: config(paper[f"{name}-central/od/0"]) for name in ("cifar10", "femnist", "shakespeare")}
    assert [(n["epochs"], n["batch_size"], n["lr"], n["momentum"]) for n in numbers.values()] == [
        (300, 128, 0.1, 0.9), (20, 128, 0.1, 0.9), (50, 32, 0.1, 0.9)
    ]  # fmt: skip
    assert [Fraction(m) * 300 for m in numbers["cifar10"]["milestones"]] == [150, 225]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"name": "fig9"}, "'fig9' is not one of: table1b, fig3"),
        ({"name": "fig4", "tasks": "mnist"}, "--tasks mnist: allowed are cifar10, femnist"),
        ({"name": "fig4", "scale": "phone"}, "--scale phone: allowed are paper, laptop"),
        ({"name": "fig4", "seeds": "0,x"}, "--seeds 0,x: whole numbers are needed"),
    ],
)
def test_mistakes_are_named(call, says, tmp_path):
    with pytest.raises(ValueError, match=re.escape(says)):
        reproduce(**call, runs=tmp_path)


# Made-up runs ---------------------------------------------------------------------------------------------------------


def fake(runs, task, curve, seed, points, metric="accuracy", macs=10, losses=(2.0, 1.0), **config):
    """A finished run of four rounds with the scores given, tested after the second at half of them."""
    settings = {"name": task, "method": curve, "metric": metric, "num_rounds": 4, "seed": seed, "targets": ["1"]}
    folder = RunFolder.create(runs / task / curve / str(seed), settings | config)

    def scores(share, loss):
        return {w: {"loss": loss, "accuracy": share * p / 100, "perplexity": p / share} for w, p in points.items()}

    tier = {"clients": 1, "examples": 8, "bytes_down": 3, "bytes_up": 2, "macs": macs}
    base = {"stage": 0, "target": "1", "lr": 0.1, "loss": 1.0, "examples": 8, "macs": macs, "shells": {}, "dropped": {}}
    tested = {1: scores(0.5, losses[0]), 3: scores(1, losses[1])}
    folder.append({**base, "round": i, "tiers": {"1": tier}, "scores": tested.get(i, {})} for i in range(4))
    folder.write_json("clients.json", {})
    return folder


def found(runs, task, *curves):
    return {name: measure(TASKS[task], CURVES[name], runs)[0] for name in curves}


def by_width(*points):
    return dict(zip(("1/5", "2/5", "3/5", "4/5", "1"), points, strict=True))


def test_a_claim_holds_where_the_difference_of_each_seed_is_above_its_noise(tmp_path):
    """Differences are 1, 2, 3 at 2/5; -1, 0, 4 at 3/5 (mean 1, error 1.53); -1, -2, -3 at 4/5; 3, 5, 7 at 1."""
    for seed, (a, b, c, d) in enumerate([(1, -1, -1, 3), (2, 0, -2, 5), (3, 4, -3, 7)]):
        base = 50 + 10 * seed  # a seed that is harder for both does not count
        fake(tmp_path, "cifar10", "efd", seed, by_width(10, base, base, base, base))
        fake(tmp_path, "cifar10", "fjord-kd", seed, by_width(10, base + a, base + b, base + c, base + d))
    said = claims.decide(_claim("above-efd"), found(tmp_path, "cifar10", "fjord-kd", "efd"))
    assert said.verdict == "holds in part"
    assert said.details == (
        "at 2/5, 1, not at 3/5, 4/5: 2/5: +2 ± 0.58; 3/5: +1 ± 1.5; 4/5: -2 ± 0.58; 1: +5 ± 1.2; mean +1.5; 3 seeds"
    )
    best = claims.decide(_claim("above-best-efd"), found(tmp_path, "cifar10", "fjord-kd", "efd"))
    assert (best.verdict, best.details) == ("holds", "1 against 2/5: +5 ± 1.2; 3 seeds")


def _claim(name):
    from fjord.reproduce.stated import CLAIMS

    (claim,) = [claim for claim in CLAIMS if claim.name == name]
    return claim


def test_perplexity_counts_the_other_way_round(tmp_path):
    fake(tmp_path, "shakespeare", "fjord-kd", 0, by_width(5, 4, 3, 3, 2), "perplexity")
    fake(tmp_path, "shakespeare", "efd", 0, by_width(5, 5, 4, 4, 4), "perplexity")
    both = found(tmp_path, "shakespeare", "fjord-kd", "efd")
    assert claims.decide(_claim("above-efd"), both).verdict == "holds"
    grows = claims.decide(_claim("grows"), both)
    assert grows.verdict == "holds in part"
    assert grows.details.startswith("at 1/5 to 2/5, 2/5 to 3/5, 4/5 to 1, not at 3/5 to 4/5")
    assert both["efd"].stats[Width(1)].mean == -4


@pytest.mark.parametrize(
    ("lower", "verdict"), [((0, 0, 0, 0), "holds"), ((1, 1, 1, 0), "holds"), ((1.01, 0, 0, 0), "holds in part")]
)
def test_close_is_a_point_lower_at_most(lower, verdict, tmp_path):
    fake(tmp_path, "cifar10", "fjord-kd", 0, by_width(50, 50, 50, 50, 50))
    fake(tmp_path, "cifar10", "fjord-kd-ds05", 0, by_width(*(50 - n for n in lower), 10))
    curves = found(tmp_path, "cifar10", "fjord-kd", "fjord-kd-ds05")
    assert claims.decide(_claim("small-not-hurt"), curves).verdict == verdict
    assert claims.decide(_claim("large-gains"), curves).verdict == "does not hold"


def test_random_units_collapse_below_half_the_accuracy(tmp_path):
    fake(tmp_path, "cifar10-central", "od", 0, by_width(60, 60, 60, 60, 80))
    folder = fake(tmp_path, "cifar10-central", "single", 0, by_width(61, 61, 61, 61, 81))
    rows = folder.metrics()
    rows[-1]["random"] = {
        w: {"loss": [1.0, 1.0], "accuracy": [(p - 1) / 100, (p + 1) / 100]}
        for w, p in by_width(10, 29, 31, 29, 80).items()
    }
    folder.keep_rows(lambda row: False)
    folder.append(rows)
    curves = found(tmp_path, "cifar10", "od", "single", "random")
    assert [round(stat.mean) for stat in curves["random"].stats.values()] == [10, 29, 31, 29, 80]
    said = claims.decide(_claim("random-collapses"), curves)
    assert said.details.startswith("at 1/5, 2/5, 4/5, not at 3/5")
    assert claims.decide(_claim("od-close"), curves).verdict == "holds"


def test_convergence_compares_the_last_loss_and_the_steps_before_it(tmp_path):
    for name, losses in (("fjord", (1.5, 1.0)), ("fjord-kd", (1.5, 0.5)), ("efd", (2.0, 0.75))):
        folder = fake(tmp_path, "cifar10", name, 0, by_width(1, 1, 1, 1, 1), losses=losses)
        rows = folder.metrics()
        rows[2]["scores"] = {"1": {**rows[1]["scores"]["1"]}}  # one test more in the second half
        folder.keep_rows(lambda row: False)
        folder.append(rows)
    said = claims.decide(_claim("smoother"), found(tmp_path, "cifar10", "fjord", "fjord-kd", "efd"))
    assert said.details.startswith(
        "at jitter of FjORD, loss of FjORD w/ KD, jitter of FjORD w/ KD, not at loss of FjORD"
    )
    assert "loss of FjORD: -0.25; jitter of FjORD: +0.75; " in said.details


def test_a_claim_without_runs_is_not_decided(tmp_path):
    fake(tmp_path, "cifar10", "fjord", 0, by_width(1, 1, 1, 1, 1))
    verdicts = {v.claim: v for v in make(FIGURES["fig5"], tmp_path).verdicts}
    assert verdicts["kd-gains"].verdict == "not decided"
    assert verdicts["kd-gains"].details == "there is no finished run of fjord-kd"
    fake(tmp_path, "emnist-skewed-850", "fjord-kd", 0, by_width(1, 1, 1, 1, 1))  # one that looks into something
    assert [v.task for v in make(FIGURES["fig5"], tmp_path).verdicts] == ["cifar10"]
    fake(tmp_path, "emnist-skewed-850", "fjord", 0, by_width(2, 2, 2, 2, 2))
    found = {v.task: v.verdict for v in make(FIGURES["fig5"], tmp_path).verdicts}
    assert found == {"cifar10": "not decided", "emnist-skewed-850": "does not hold"}


def test_methods_are_matched_in_what_they_spend(tmp_path):
    """The cheap method spends 4 x 10; the dear one has spent that at its second test, the small one is not counted."""
    fake(tmp_path, "emnist-iid", "fjord", 0, {"1": 60.0}, macs=10)
    fake(tmp_path, "emnist-iid", "fjord-kd", 0, {"1": 80.0}, macs=15)
    fake(tmp_path, "emnist-iid", "exclusive-small", 0, {"1/5": 30.0}, macs=1)
    names = ("fjord", "fjord-kd", "exclusive-small")
    cheap, dear, small = costs.matched(list(found(tmp_path, "emnist-iid", *names).values()))
    assert cheap.at_equal["MACs"].mean == cheap.final.mean == 60
    assert dear.at_equal["MACs"].mean == pytest.approx(40 + 40 * (40 - 30) / 30)
    assert dear.at_equal["bytes"].mean == 80
    assert (small.width, small.at_equal["MACs"].mean) == (Width(1, 5), 30)
    assert dear.total == {"MACs": 60.0, "bytes": 20.0}


def test_seeds_with_other_settings_do_not_mix(tmp_path):
    fake(tmp_path, "cifar10", "fjord", 0, by_width(1, 1, 1, 1, 1))
    fake(tmp_path, "cifar10", "fjord", 1, by_width(1, 1, 1, 1, 1), lr=3)
    with pytest.raises(ValueError, match="differ in more than their seed"):
        found(tmp_path, "cifar10", "fjord")


def test_results_have_no_number_without_a_run_folder(tmp_path):
    runs = tmp_path / "runs"
    for (task, metric), seed in product((("emnist-skewed", "accuracy"), ("shakespeare", "perplexity")), range(3)):
        for i, curve in enumerate(("fjord-kd", "fjord", "efd", "fjord-efd", "fd", "heterofl", "fedrolex")):
            fake(runs, task, curve, seed, by_width(*(9 - i / 3 + w + seed / 9 for w in range(5))), metric)
    (runs / "emnist-skewed" / "efd" / "2" / "clients.json").unlink()  # not finished
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.md").write_text("## fig4\nWhy it is so.\n\n## fig5\nAnd this.\n")
    results(runs, tmp_path / "RESULTS.md")
    text, kept = (tmp_path / "RESULTS.md").read_text(), tmp_path / "results"
    assert not (kept / "emnist-skewed" / "efd" / "2").exists()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    numbers = [row for row in rows if row[-1] != "runs" and re.search(r"\d", " ".join(row[1:-1]))]
    assert len(numbers) > 40
    for row in numbers:
        if row[-1] in ("the paper's Table 1b", "none"):
            continue
        assert all((kept / folder / "config.json").is_file() for folder in expanded(row[-1])), row
    assert text.count("![") == 7
    assert all((tmp_path / link).is_file() for link in re.findall(r"\]\((.*?)\)", text))
    assert (
        text.index("Fig. 4: FjORD") < text.index("Why it is so.") < text.index("Fig. 5: FjORD") < text.index("And this")
    )
    claims_told = {row[1] for row in rows if row[2].startswith("**")}
    assert {claim.text for claim in _claims_of("fig4", "fig5", "fig6", "fig7", "convergence", "fd-efd")} <= claims_told
    page = (kept / "index.html").read_text()
    assert page.count("<img ") == 7
    assert "http" not in page
    assert str(tmp_path) not in text + page


def expanded(text):
    """`a/{0,1}, b/2` as folders."""
    for part in text.strip("`").replace("}, ", "}; ").split("; "):
        for piece in re.findall(r"[^,{}]+(?:\{[\d,]+\})?", part):
            base, _, seeds = piece.strip().partition("{")
            yield from (base + seed for seed in seeds.rstrip("}").split(","))


def _claims_of(*names):
    from fjord.reproduce.stated import CLAIMS

    return [claim for claim in CLAIMS if claim.figure in names]


def test_packed_runs_are_the_same_runs(tmp_path):
    folder = fake(tmp_path / "runs", "cifar10", "fjord", 0, by_width(1, 2, 3, 4, 5))
    assert 0 < pack(tmp_path / "runs", tmp_path / "small") < 3000
    small = RunFolder(tmp_path / "small" / "cifar10" / "fjord" / "0")
    assert small.metrics() == folder.metrics()
    assert Run.read(small).finished
    assert not list(small.path.glob("*.safetensors"))
    first = (small.path / "metrics.jsonl.gz").read_bytes()
    pack(tmp_path / "small", tmp_path / "again")
    assert (tmp_path / "again" / "cifar10/fjord/0/metrics.jsonl.gz").read_bytes() == first


def test_the_page_on_reproduction_prints_the_table_of_the_code():
    assert scales.table(scales.SCALES["laptop"]) in (ROOT / "docs" / "reproduce.md").read_text()
    assert compare.RULES in (ROOT / "docs" / "reproduce.md").read_text().replace("\n", " ")


def test_notes_are_read_by_heading(tmp_path):
    (tmp_path / "notes.md").write_text("Preface.\n\n## fig4\nA **b**.\n\nC.\n## svd\nD\n")
    assert read_notes(tmp_path / "notes.md") == {"fig4": "A **b**.\n\nC.", "svd": "D"}
    assert read_notes(tmp_path / "none.md") == {}


def test_table_1b_is_counted_into_a_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    reproduce("table1b", runs=tmp_path)
    shown = capsys.readouterr().out
    assert "555,422,720 │" in shown  # whole, in a narrow terminal
    assert "Runs: table1b/0; the paper's Table 1b" in shown
    section = make(figures.FIGURES["table1b"], tmp_path)
    verdicts = {v.claim: v.verdict for v in section.verdicts}
    assert verdicts.pop("cnn-weights") == "does not hold"  # see the README
    assert set(verdicts.values()) == {"holds"}
    assert len(RunFolder(tmp_path / "table1b" / "0").metrics()) == 15
