"""Runs that differ only in their seed are one group."""

from report_runs import four_rounds, headline_cells, make_run, page_text

from fjord.experiments.runs import RunFolder
from fjord.report.groups import group_runs


def test_runs_are_one_group_if_they_differ_in_nothing_that_changes_results(tmp_path):
    free = {
        "workers": 1,
        "checkpoint_seconds": 9.0,
        "log": ["wandb"],
        "recipe": {"name": "toy", "set": ["seed=1"]},
    }
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, **free)
    assert [
        len(group.runs) for group in group_runs([first, second, RunFolder(tmp_path / "a")])
    ] == [2]
    slow, other = make_run(tmp_path / "c", lr=0.05), make_run(tmp_path / "d", method="efd")
    names = [group.name for group in group_runs([first, slow, other, second])]
    assert names == ["fjord (lr 0.1)", "fjord (lr 0.05)", "efd"]


def test_names_stay_distinct_where_settings_are_nested_or_too_long_to_show(tmp_path):
    nested = [
        make_run(tmp_path / f"n{n}", data={"function": "writers", "num_clients": n})
        for n in (20, 40)
    ]
    assert [g.name for g in group_runs(nested)] == [
        "fjord (data.num_clients 20)",
        "fjord (data.num_clients 40)",
    ]
    long = [make_run(tmp_path / end, tiers="1/5:" + "0" * 40 + end) for end in "ab"]
    assert len({group.name for group in group_runs(long)}) == 2


def test_runs_from_before_a_setting_are_in_one_group_with_those_that_do_not_use_it(tmp_path):
    old, new = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, clock=None, deadline=None)
    assert [group.name for group in group_runs([old, new])] == ["fjord"]


def test_a_method_with_a_model_for_each_width_is_read_across_its_stages(tmp_path):
    small = [r | {"target": "1/2", "shells": {"1/2": 3}} for r in four_rounds({"1/2": 0.4})]
    large = [r | {"stage": 1} for r in four_rounds({"1": 0.6})]
    shown = headline_cells(
        page_text(make_run(tmp_path / "a", small + large, method="efd", targets=["1/2", "1"]))
    )["efd"]
    assert (shown["rounds"], shown["width 1/2"], shown["width 1"]) == ("2 x 4", "40.0%", "60.0%")
    half = make_run(tmp_path / "b", small, method="efd", targets=["1/2", "1"])
    assert "4 of 4 rounds of model 1 of 2, of width 1/2, are done" in page_text(half), (
        "the wider model is still to come"
    )
