"""Results of made-up runs: verdicts on the paper's claims, costs, the page, and packed folders."""

import math
import re
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fjord.core.width import Width
from fjord.experiments.runs import RunFolder
from fjord.report.groups import ReportRun
from reproduction import claims, costs
from reproduction.command import write_results
from reproduction.compare import STUDENT, score_difference
from reproduction.curves import CURVES, TASKS
from reproduction.figures import FIGURES
from reproduction.measured import measure_curve
from reproduction.pack import pack_runs
from reproduction.results import make_result, read_notes


def fake(runs, task, curve, seed, points, metric="accuracy", macs=10, losses=(2.0, 1.0), **config):
    """A finished run of four rounds with these scores, tested after the second at half of them."""
    settings = {
        "name": task,
        "method": curve,
        "metric": metric,
        "num_rounds": 4,
        "seed": seed,
        "targets": ["1"],
    }
    folder = RunFolder.create(runs / task / curve / str(seed), settings | config)

    def scores(share, loss):
        return {
            w: {"loss": loss, "accuracy": share * p / 100, "perplexity": p / share}
            for w, p in points.items()
        }

    tier = {"clients": 1, "examples": 8, "bytes_down": 3, "bytes_up": 2, "macs": macs}
    base = {
        "stage": 0,
        "target": "1",
        "lr": 0.1,
        "loss": 1.0,
        "examples": 8,
        "macs": macs,
        "shells": {},
        "dropped": {},
    }
    tested = {1: scores(0.5, losses[0]), 3: scores(1, losses[1])}
    folder.append(
        {**base, "round": i, "tiers": {"1": tier}, "scores": tested.get(i, {})} for i in range(4)
    )
    folder.write_json("clients.json", {})
    return folder


def found(runs, task, *curves):
    return {name: measure_curve(TASKS[task], CURVES[name], runs)[0] for name in curves}


def by_width(*points):
    return dict(zip(("1/5", "2/5", "3/5", "4/5", "1"), points, strict=True))


def test_a_claim_holds_where_the_difference_of_each_seed_is_above_its_noise(tmp_path):
    """1, 2, 3 at 2/5; -1, 0, 4 at 3/5 (mean 1, error 1.53); -1, -2, -3 at 4/5; 3, 5, 7 at 1."""
    for seed, (a, b, c, d) in enumerate([(1, -1, -1, 3), (2, 0, -2, 5), (3, 4, -3, 7)]):
        base = 50 + 10 * seed  # a seed that is harder for both does not count
        fake(tmp_path, "cifar10", "efd", seed, by_width(10, base, base, base, base))
        fake(
            tmp_path,
            "cifar10",
            "fjord-kd",
            seed,
            by_width(10, base + a, base + b, base + c, base + d),
        )
    said = claims.decide_claim(_claim("above-efd"), found(tmp_path, "cifar10", "fjord-kd", "efd"))
    assert said.verdict == "holds in part"
    assert said.details == (
        "yes at 2/5, 1; open at 3/5; no at 4/5. "
        "2/5: +2 ± 0.58; 3/5: +1 ± 1.5; 4/5: -2 ± 0.58; 1: +5 ± 1.2; mean +1.5; 3 seeds"
    )
    best = claims.decide_claim(
        _claim("above-best-efd"), found(tmp_path, "cifar10", "fjord-kd", "efd")
    )
    assert (best.verdict, best.details) == ("holds", "1 against 2/5: +5 ± 1.2; 3 seeds")
    for seed in range(3):
        fake(tmp_path, "femnist", "efd", seed, by_width(90, 10, 10, 10, 10))
        fake(tmp_path, "femnist", "fjord-kd", seed, by_width(10, 10, 10, 10, 20 + seed))
    with_all = claims.decide_claim(
        _claim("above-best-of-all"), found(tmp_path, "femnist", "fjord-kd", "efd")
    )
    assert (with_all.verdict, with_all.details) == (
        "does not hold",
        "1 against 1/5: -69 ± 0.58; 3 seeds",
    )
    best = claims.decide_claim(
        _claim("above-best-efd"), found(tmp_path, "femnist", "fjord-kd", "efd")
    )
    assert (best.verdict, best.details) == ("holds", "1 against 2/5: +11 ± 0.58; 3 seeds")


def _claim(name):
    from reproduction.paper_claims import CLAIMS

    (claim,) = [claim for claim in CLAIMS if claim.name == name]
    return claim


def test_perplexity_counts_the_other_way_round(tmp_path):
    fake(tmp_path, "shakespeare", "fjord-kd", 0, by_width(5, 4, 3, 3, 2), "perplexity")
    fake(tmp_path, "shakespeare", "efd", 0, by_width(5, 5, 4, 4, 4), "perplexity")
    both = found(tmp_path, "shakespeare", "fjord-kd", "efd")
    assert claims.decide_claim(_claim("above-efd"), both).verdict == "holds (one seed)"
    grows = claims.decide_claim(_claim("grows"), both)
    assert grows.verdict == "holds in part (one seed)"
    assert grows.details.startswith("yes at 1/5 to 2/5, 2/5 to 3/5, 4/5 to 1; no at 3/5 to 4/5. ")
    assert both["efd"].stats[Width(1)].mean == -4


@pytest.mark.parametrize(
    ("lower", "verdict"),
    [((0, 0, 0, 0), "holds"), ((0.99, 0.99, 0, 0), "holds"), ((1.01, 0, 0, 0), "holds in part")],
)
def test_close_is_less_than_a_point_lower(lower, verdict, tmp_path):
    fake(tmp_path, "cifar10", "fjord-kd", 0, by_width(50, 50, 50, 50, 50))
    fake(tmp_path, "cifar10", "fjord-kd-ds05", 0, by_width(*(50 - n for n in lower), 10))
    curves = found(tmp_path, "cifar10", "fjord-kd", "fjord-kd-ds05")
    assert claims.decide_claim(_claim("small-not-hurt"), curves).verdict == f"{verdict} (one seed)"
    assert claims.decide_claim(_claim("large-gains"), curves).verdict == "does not hold (one seed)"


@given(
    st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=2, max_size=12),
    st.sampled_from([0.0, -1.0]),
)
def test_above_is_the_t_test_on_one_side(values, level):
    found = score_difference("1", dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    center, count = sum(values) / len(values), len(values)
    spread = (sum((v - center) ** 2 for v in values) / (count - 1) / count) ** 0.5
    limit = STUDENT[min(count - 2, len(STUDENT) - 1)] * spread
    assume(min(abs(center - level - limit), abs(center - level + limit)) > 1e-9)
    assert found.is_above(level) is (
        True if center - level > limit else None if center - level > -limit else False
    )


def test_the_quantiles_are_those_of_student_s_t():
    """P(T > t) = 1/20, by Simpson's rule over the density."""
    for freedom, limit in enumerate(STUDENT, 1):
        scale = (
            math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        )
        density = [
            scale * (1 + (limit * i / 1000) ** 2 / freedom) ** (-(freedom + 1) / 2)
            for i in range(1001)
        ]
        inner = (
            (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]))
            * limit
            / 3000
        )
        assert 0.5 - inner == pytest.approx(0.05, abs=1e-4)


def test_random_units_collapse_below_half_the_accuracy(tmp_path):
    fake(tmp_path, "cifar10-central", "od", 0, by_width(60, 60, 60, 60, 80))
    folder = fake(tmp_path, "cifar10-central", "single", 0, by_width(60.9, 60.9, 60.9, 60.9, 80.9))
    rows = folder.metrics()
    rows[-1]["random"] = {
        w: {"loss": [1.0, 1.0], "accuracy": [(p - 1) / 100, (p + 1) / 100]}
        for w, p in by_width(10, 29, 31, 29, 80).items()
    }
    folder.keep_rows(lambda row: False)
    folder.append(rows)
    curves = found(tmp_path, "cifar10", "od", "single", "random")
    assert [round(stat.mean) for stat in curves["random"].stats.values()] == [10, 29, 31, 29, 80]
    said = claims.decide_claim(_claim("random-collapses"), curves)
    assert said.details.startswith("yes at 1/5, 2/5, 4/5; no at 3/5. ")
    assert claims.decide_claim(_claim("od-close"), curves).verdict == "holds (one seed)"


def test_convergence_compares_the_last_loss_and_the_steps_before_it(tmp_path):
    for name, losses in (("fjord", (1.5, 1.0)), ("fjord-kd", (1.5, 0.5)), ("efd", (2.0, 0.75))):
        folder = fake(tmp_path, "cifar10", name, 0, by_width(1, 1, 1, 1, 1), losses=losses)
        rows = folder.metrics()
        rows[2]["scores"] = {"1": {**rows[1]["scores"]["1"]}}  # one test more in the second half
        folder.keep_rows(lambda row: False)
        folder.append(rows)
    said = claims.decide_claim(
        _claim("smoother"), found(tmp_path, "cifar10", "fjord", "fjord-kd", "efd")
    )
    assert said.details.startswith(
        "yes at lower jitter of FjORD, lower loss of FjORD w/ KD, lower jitter of FjORD w/ KD; "
        "no at lower loss of FjORD. "
    )
    assert "lower loss of FjORD: -0.25; lower jitter of FjORD: +0.75; " in said.details


def test_a_claim_without_runs_is_undecided(tmp_path):
    fake(tmp_path, "cifar10", "fjord", 0, by_width(1, 1, 1, 1, 1))
    verdicts = {v.claim: v for v in make_result(FIGURES["fig5"], tmp_path).verdicts}
    assert verdicts["kd-gains"].verdict == "undecided"
    assert verdicts["kd-gains"].details == "there is no finished run of fjord-kd"
    fake(
        tmp_path, "emnist-skewed-850", "fjord-kd", 0, by_width(1, 1, 1, 1, 1)
    )  # one that looks into something
    assert [v.task for v in make_result(FIGURES["fig5"], tmp_path).verdicts] == ["cifar10"]
    fake(tmp_path, "emnist-skewed-850", "fjord", 0, by_width(2, 2, 2, 2, 2))
    found = {v.task: v.verdict for v in make_result(FIGURES["fig5"], tmp_path).verdicts}
    assert found == {"cifar10": "undecided", "emnist-skewed-850": "does not hold (one seed)"}


@pytest.mark.parametrize("name", ["fig4", "convergence"])
def test_a_curve_looks_the_same_on_every_task(tmp_path, name):
    """CIFAR10 lacks the first curve; the second must not take its colour there."""
    first, second, _ = FIGURES[name].curves
    fake(tmp_path, "cifar10", second, 0, by_width(1, 1, 1, 1, 1))
    fake(tmp_path, "femnist", first, 0, by_width(1, 1, 1, 1, 1))
    fake(tmp_path, "femnist", second, 0, by_width(1, 1, 1, 1, 1))
    [lone], [other, same] = (panel.series for panel in make_result(FIGURES[name], tmp_path).panels)
    assert lone.style == same.style != other.style


def test_methods_are_matched_in_what_they_spend(tmp_path):
    """The cheap method spends 4 x 10, the dear one as much at its second test.

    The small one is not counted.
    """
    fake(tmp_path, "emnist-iid", "fjord", 0, {"1": 60.0}, macs=10)
    fake(tmp_path, "emnist-iid", "fjord-kd", 0, {"1": 80.0}, macs=15)
    fake(tmp_path, "emnist-iid", "exclusive-small", 0, {"1/5": 30.0}, macs=1)
    names = ("fjord", "fjord-kd", "exclusive-small")
    cheap, dear, small = costs.match_costs(list(found(tmp_path, "emnist-iid", *names).values()))
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
    for (task, metric), seed in product(
        (("emnist-skewed", "accuracy"), ("shakespeare", "perplexity")), range(3)
    ):
        for i, curve in enumerate(
            ("fjord-kd", "fjord", "efd", "fjord-efd", "fd", "heterofl", "fedrolex")
        ):
            fake(
                runs,
                task,
                curve,
                seed,
                by_width(*(9 - i / 3 + w + seed / 9 for w in range(5))),
                metric,
            )
    (runs / "emnist-skewed" / "efd" / "2" / "clients.json").unlink()  # not finished
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.md").write_text("## fig4\nWhy it is so.\n\n## fig5\nAnd this.\n")
    write_results(runs, tmp_path / "RESULTS.md")
    text, kept = (tmp_path / "RESULTS.md").read_text(), tmp_path / "results"
    assert not (kept / "emnist-skewed" / "efd" / "2").exists()
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    numbers = [row for row in rows if row[-1] != "runs" and re.search(r"\d", " ".join(row[1:-1]))]
    assert len(numbers) > 40
    for row in numbers:
        if row[-1] in ("the paper's Table 1b", "none"):
            continue
        assert all((kept / folder / "config.json").is_file() for folder in expanded(row[-1])), row
    assert text.count("![") == 8
    assert all((tmp_path / link).is_file() for link in re.findall(r"\]\((.*?)\)", text))
    assert (
        text.index("Fig. 4: FjORD")
        < text.index("Why it is so.")
        < text.index("Fig. 5: FjORD")
        < text.index("And this")
    )
    claims_told = {row[1] for row in rows if row[2].startswith("**")}
    assert {
        claim.text for claim in _claims_of("fig4", "fig5", "fig6", "fig7", "convergence", "fd-efd")
    } <= claims_told
    page = (kept / "index.html").read_text()
    assert page.count("<img ") == 8
    assert "http" not in page
    assert str(tmp_path) not in text + page


def expanded(text):
    """`a/{0,1}, b/2` as folders."""
    for part in text.strip("`").replace("}, ", "}; ").split("; "):
        for piece in re.findall(r"[^,{}]+(?:\{[\d,]+\})?", part):
            base, _, seeds = piece.strip().partition("{")
            yield from (base + seed for seed in seeds.rstrip("}").split(","))


def _claims_of(*names):
    from reproduction.paper_claims import CLAIMS

    return [claim for claim in CLAIMS if claim.figure in names]


def test_packed_runs_are_the_same_runs(tmp_path):
    folder = fake(tmp_path / "runs", "cifar10", "fjord", 0, by_width(1, 2, 3, 4, 5))
    size, left = pack_runs(tmp_path / "runs", tmp_path / "small")
    assert 0 < size < 3000
    assert left == []
    small = RunFolder(tmp_path / "small" / "cifar10" / "fjord" / "0")
    assert small.metrics() == folder.metrics()
    assert ReportRun.read(small).finished
    assert not list(small.path.glob("*.safetensors"))
    first = (small.path / "metrics.jsonl.gz").read_bytes()
    pack_runs(tmp_path / "small", tmp_path / "again")
    assert (tmp_path / "again" / "cifar10/fjord/0/metrics.jsonl.gz").read_bytes() == first


def test_of_a_run_of_several_models_those_that_are_done_count_and_decide_nothing(tmp_path):
    """eFD has two of its three models, and a round of the third."""
    for curve in ("fjord", "fjord-kd"):
        fake(tmp_path / "runs", "cifar10", curve, 0, {"1/5": 1, "2/5": 2, "1": 3})
    folder = fake(tmp_path / "runs", "cifar10", "efd", 0, {"1/5": 9}, targets=["1/5", "2/5", "1"])
    first, kinds = folder.metrics(), {"loss": 1.0, "accuracy": 0.08, "perplexity": 8.0}
    second = [
        {**row, "stage": 1, "target": "2/5", "scores": {"2/5": kinds} if row["scores"] else {}}
        for row in first
    ]
    third = {**first[0], "stage": 2, "target": "1", "scores": {"1": kinds}}
    folder.append([*second, third])
    pack_runs(tmp_path / "runs", tmp_path / "small")
    small = RunFolder(tmp_path / "small" / "cifar10" / "efd" / "0")
    assert small.metrics() == [*first, *second]
    for runs in (tmp_path / "runs", tmp_path / "small"):
        curves = found(runs, "cifar10", "fjord", "fjord-kd", "efd")
        assert {str(w): stat.mean for w, stat in curves["efd"].stats.items()} == {
            "1/5": 9,
            "2/5": 8,
        }
        for name in ("above-efd", "above-best-efd", "smoother"):
            said = claims.decide_claim(_claim(name), curves)
            assert (said.verdict, said.details) == (
                "undecided",
                "models are missing: efd, seed 0 has 2 of 3 models",
            )
        row = make_result(FIGURES["fig4"], runs).tables[0].rows[1]
        assert row[:5] == ["eFD", "0 + 1 in part", "9.00", "8.00", "\N{EN DASH}"]
        section = make_result(FIGURES["convergence"], runs)
        assert [row[0] for row in section.tables[0].rows] == ["FjORD", "FjORD w/ KD"]
        assert len(section.panels[0].series) == 2
        assert section.unfinished[0].startswith("cifar10/efd/0: ")


def test_a_seed_that_has_all_its_models_decides_without_those_that_do_not(tmp_path):
    for seed in (0, 1):
        fake(tmp_path, "cifar10", "fjord-kd", seed, {"1/5": 8, "1": 8})
        folder = fake(tmp_path, "cifar10", "efd", seed, {"1/5": 7 - seed}, targets=["1/5", "1"])
    folder.append(
        {**row, "stage": 1, "scores": _renamed(row["scores"], "1/5", "1")}
        for row in folder.metrics()
    )
    curves = found(tmp_path, "cifar10", "fjord-kd", "efd")
    assert curves["efd"].seed_count == "1 + 1 in part"
    said = claims.decide_claim(_claim("above-efd"), curves)
    assert (said.verdict, said.details) == ("holds (one seed)", "1: +2; 1 seed")


def _renamed(scores, old, new):
    return {new: scores[old]} if old in scores else {}


def test_what_is_kept_is_not_replaced_by_less(tmp_path):
    folder = fake(tmp_path / "runs", "cifar10", "efd", 0, {"1/5": 9}, targets=["1/5", "1"])
    first = folder.metrics()
    folder.append({**row, "stage": 1, "target": "1"} for row in first)
    pack_runs(tmp_path / "runs", tmp_path / "small")
    folder.keep_rows(lambda row: row["stage"] == 0)
    _, left = pack_runs(tmp_path / "runs", tmp_path / "small")
    assert left == [f"cifar10/efd/0: has more models than {folder.path}"]
    assert ReportRun.read(RunFolder(tmp_path / "small" / "cifar10" / "efd" / "0")).finished


def test_notes_are_read_by_heading(tmp_path):
    (tmp_path / "notes.md").write_text("Preface.\n\n## fig4\nA **b**.\n\nC.\n## svd\nD\n")
    assert read_notes(tmp_path / "notes.md") == {"fig4": "A **b**.\n\nC.", "svd": "D"}
    assert read_notes(tmp_path / "none.md") == {}
