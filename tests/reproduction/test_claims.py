"""The rules by which made-up runs decide claims."""

import pytest
from paper_runs import by_width, claim_named, fake_run, read_curves

from fjord.core.width import Width
from reproduction import claims


def test_a_claim_holds_where_the_difference_of_each_seed_is_above_its_noise(tmp_path):
    """1, 2, 3 at 2/5; -1, 0, 4 at 3/5 (mean 1, error 1.53); -1, -2, -3 at 4/5; 3, 5, 7 at 1."""
    for seed, (a, b, c, d) in enumerate([(1, -1, -1, 3), (2, 0, -2, 5), (3, 4, -3, 7)]):
        base = 50 + 10 * seed  # a seed that is harder for both does not count
        fake_run(tmp_path, "cifar10", "efd", seed, by_width(10, base, base, base, base))
        fake_run(
            tmp_path,
            "cifar10",
            "fjord-kd",
            seed,
            by_width(10, base + a, base + b, base + c, base + d),
        )
    said = claims.decide_claim(
        claim_named("above-efd"), read_curves(tmp_path, "cifar10", "fjord-kd", "efd")
    )
    assert said.verdict == "holds in part"
    assert said.details == (
        "yes at 2/5, 1; open at 3/5; no at 4/5. "
        "2/5: +2 ± 0.58; 3/5: +1 ± 1.5; 4/5: -2 ± 0.58; 1: +5 ± 1.2; mean +1.5; 3 seeds"
    )
    best = claims.decide_claim(
        claim_named("above-best-efd"), read_curves(tmp_path, "cifar10", "fjord-kd", "efd")
    )
    assert (best.verdict, best.details) == ("holds", "1 against 2/5: +5 ± 1.2; 3 seeds")
    for seed in range(3):
        fake_run(tmp_path, "femnist", "efd", seed, by_width(90, 10, 10, 10, 10))
        fake_run(tmp_path, "femnist", "fjord-kd", seed, by_width(10, 10, 10, 10, 20 + seed))
    with_all = claims.decide_claim(
        claim_named("above-best-of-all"), read_curves(tmp_path, "femnist", "fjord-kd", "efd")
    )
    assert (with_all.verdict, with_all.details) == (
        "does not hold",
        "1 against 1/5: -69 ± 0.58; 3 seeds",
    )
    best = claims.decide_claim(
        claim_named("above-best-efd"), read_curves(tmp_path, "femnist", "fjord-kd", "efd")
    )
    assert (best.verdict, best.details) == ("holds", "1 against 2/5: +11 ± 0.58; 3 seeds")


def test_perplexity_counts_the_other_way_round(tmp_path):
    fake_run(tmp_path, "shakespeare", "fjord-kd", 0, by_width(5, 4, 3, 3, 2), "perplexity")
    fake_run(tmp_path, "shakespeare", "efd", 0, by_width(5, 5, 4, 4, 4), "perplexity")
    both = read_curves(tmp_path, "shakespeare", "fjord-kd", "efd")
    assert claims.decide_claim(claim_named("above-efd"), both).verdict == "holds (one seed)"
    grows = claims.decide_claim(claim_named("grows"), both)
    assert grows.verdict == "holds in part (one seed)"
    assert grows.details.startswith("yes at 1/5 to 2/5, 2/5 to 3/5, 4/5 to 1; no at 3/5 to 4/5. ")
    assert both["efd"].stats[Width(1)].mean == -4


@pytest.mark.parametrize(
    ("lower", "verdict"),
    [((0, 0, 0, 0), "holds"), ((0.99, 0.99, 0, 0), "holds"), ((1.01, 0, 0, 0), "holds in part")],
)
def test_close_is_less_than_a_point_lower(lower, verdict, tmp_path):
    fake_run(tmp_path, "cifar10", "fjord-kd", 0, by_width(50, 50, 50, 50, 50))
    fake_run(tmp_path, "cifar10", "fjord-kd-ds05", 0, by_width(*(50 - n for n in lower), 10))
    curves = read_curves(tmp_path, "cifar10", "fjord-kd", "fjord-kd-ds05")
    assert (
        claims.decide_claim(claim_named("small-not-hurt"), curves).verdict
        == f"{verdict} (one seed)"
    )
    assert (
        claims.decide_claim(claim_named("large-gains"), curves).verdict
        == "does not hold (one seed)"
    )


def test_random_units_collapse_below_half_the_accuracy(tmp_path):
    fake_run(tmp_path, "cifar10-central", "od", 0, by_width(60, 60, 60, 60, 80))
    folder = fake_run(
        tmp_path, "cifar10-central", "single", 0, by_width(60.9, 60.9, 60.9, 60.9, 80.9)
    )
    rows = folder.metrics()
    rows[-1]["random"] = {
        w: {"loss": [1.0, 1.0], "accuracy": [(p - 1) / 100, (p + 1) / 100]}
        for w, p in by_width(10, 29, 31, 29, 80).items()
    }
    folder.keep_rows(lambda row: False)
    folder.append(rows)
    curves = read_curves(tmp_path, "cifar10", "od", "single", "random")
    assert [round(stat.mean) for stat in curves["random"].stats.values()] == [10, 29, 31, 29, 80]
    said = claims.decide_claim(claim_named("random-collapses"), curves)
    assert said.details.startswith("yes at 1/5, 2/5, 4/5; no at 3/5. ")
    assert claims.decide_claim(claim_named("od-close"), curves).verdict == "holds (one seed)"


def test_convergence_compares_the_last_loss_and_the_steps_before_it(tmp_path):
    for name, losses in (("fjord", (1.5, 1.0)), ("fjord-kd", (1.5, 0.5)), ("efd", (2.0, 0.75))):
        folder = fake_run(tmp_path, "cifar10", name, 0, by_width(1, 1, 1, 1, 1), losses=losses)
        rows = folder.metrics()
        rows[2]["scores"] = {"1": {**rows[1]["scores"]["1"]}}  # one test more in the second half
        folder.keep_rows(lambda row: False)
        folder.append(rows)
    said = claims.decide_claim(
        claim_named("smoother"), read_curves(tmp_path, "cifar10", "fjord", "fjord-kd", "efd")
    )
    assert said.details.startswith(
        "yes at lower jitter of FjORD, lower loss of FjORD w/ KD, lower jitter of FjORD w/ KD; "
        "no at lower loss of FjORD. "
    )
    assert "lower loss of FjORD: -0.25; lower jitter of FjORD: +0.75; " in said.details


def test_a_seed_that_has_all_its_models_decides_without_those_that_do_not(tmp_path):
    for seed in (0, 1):
        fake_run(tmp_path, "cifar10", "fjord-kd", seed, {"1/5": 8, "1": 8})
        folder = fake_run(tmp_path, "cifar10", "efd", seed, {"1/5": 7 - seed}, targets=["1/5", "1"])
    folder.append(
        {**row, "stage": 1, "scores": _renamed(row["scores"], "1/5", "1")}
        for row in folder.metrics()
    )
    curves = read_curves(tmp_path, "cifar10", "fjord-kd", "efd")
    assert curves["efd"].seed_count == "1 + 1 in part"
    said = claims.decide_claim(claim_named("above-efd"), curves)
    assert (said.verdict, said.details) == ("holds (one seed)", "1: +2; 1 seed")


def _renamed(scores, old, new):
    return {new: scores[old]} if old in scores else {}
