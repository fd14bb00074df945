"""Runs without their weights are the same runs."""

from paper_runs import by_width, claim_named, fake_run, read_curves

from fjord.experiments.runs import RunFolder
from fjord.report.groups import ReportRun
from reproduction import claims
from reproduction.figures import FIGURES
from reproduction.pack import pack_runs
from reproduction.results import make_result


def test_packed_runs_are_the_same_runs(tmp_path):
    folder = fake_run(tmp_path / "runs", "cifar10", "fjord", 0, by_width(1, 2, 3, 4, 5))
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
        fake_run(tmp_path / "runs", "cifar10", curve, 0, {"1/5": 1, "2/5": 2, "1": 3})
    folder = fake_run(
        tmp_path / "runs", "cifar10", "efd", 0, {"1/5": 9}, targets=["1/5", "2/5", "1"]
    )
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
        curves = read_curves(runs, "cifar10", "fjord", "fjord-kd", "efd")
        assert {str(w): stat.mean for w, stat in curves["efd"].stats.items()} == {
            "1/5": 9,
            "2/5": 8,
        }
        for name in ("above-efd", "above-best-efd", "smoother"):
            said = claims.decide_claim(claim_named(name), curves)
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


def test_what_is_kept_is_not_replaced_by_less(tmp_path):
    folder = fake_run(tmp_path / "runs", "cifar10", "efd", 0, {"1/5": 9}, targets=["1/5", "1"])
    first = folder.metrics()
    folder.append({**row, "stage": 1, "target": "1"} for row in first)
    pack_runs(tmp_path / "runs", tmp_path / "small")
    folder.keep_rows(lambda row: row["stage"] == 0)
    _, left = pack_runs(tmp_path / "runs", tmp_path / "small")
    assert left == [f"cifar10/efd/0: has more models than {folder.path}"]
    assert ReportRun.read(RunFolder(tmp_path / "small" / "cifar10" / "efd" / "0")).finished
