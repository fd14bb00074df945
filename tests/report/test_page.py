"""The page of run folders: its numbers against numbers made by hand, and its look in a browser."""

import re
import shutil
import sys
from html import unescape
from statistics import stdev

import pytest

from fjord.core.width import Width
from fjord.experiments.runs import RunFolder
from fjord.report import page
from fjord.report.groups import group_runs
from fjord.report.numbers import (
    client_costs,
    client_means,
    loss_curve,
    seed_stat,
    shell_rows,
    tier_scores,
)

CONFIG = {
    "recipe": {"name": "toy", "set": []},
    "name": "toy",
    "method": "fjord",
    "widths": "WidthSpace(1/2: 1/2, 1: 1/2)",
    "data": {"function": "writers", "num_clients": 20},
    "num_rounds": 4,
    "lr": 0.1,
    "metric": "accuracy",
    "seed": 0,
    "workers": 2,
    "checkpoint_seconds": 5.0,
    "log": [],
}
SCORES = {"1/2": 0.5, "1": 0.75}
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


def tier(clients, down=100, up=50, macs=1000):
    return {"clients": clients, "examples": 8, "bytes_down": down, "bytes_up": up, "macs": macs}


def row(index, scores=None, **other):
    numbers = {
        w: {"loss": 1.0, "accuracy": s, "perplexity": 10 * s} for w, s in (scores or {}).items()
    }
    base = {
        "stage": 0,
        "target": "1",
        "round": index,
        "lr": 0.1,
        "loss": 4.0 - index,
        "examples": 8,
        "macs": 2000,
    }
    tiers = {"1/2": tier(2), "1": tier(1, 300, 300, 5000)}
    return (
        base
        | {"tiers": tiers, "shells": {"1/2": 3, "1": 2}, "dropped": {}, "scores": numbers}
        | other
    )


def rows(scores):
    """Four rounds; scored after the second and, with the scores given, after the last."""
    return [
        row(0),
        row(1, {w: s / 2 for w, s in scores.items()}),
        row(2, loss=None),
        row(3, scores),
    ]


def clocked(metrics, seconds):
    """The same rounds on a simulated clock."""
    return [r | {"simulated_seconds": seconds} for r in metrics]


def clients(count=20):
    """Clients whose accuracies rise evenly, every other one with ceiling 1/2."""
    return {
        str(i): {
            "ceiling": "1/2" if i % 2 else "1",
            "width": "1/2",
            "accuracy": i / 100,
            "perplexity": 2.0 + i,
        }
        for i in range(count)
    }


def make(path, metrics=None, served=None, **config):
    folder = RunFolder.create(path, CONFIG | config)
    folder.append(rows(SCORES) if metrics is None else metrics)
    if served is not False:
        folder.write_json("clients.json", served or clients())
    return folder


def text_of(*folders):
    return page.write_page(list(folders), folders[0].path / "report.html").read_text()


def cells(text):
    """The headline table: the cells of each row, by label."""
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    return {
        unescape(re.search(r"<th scope='row'>(.*?)</th>", line)[1]): dict(
            re.findall(r'data-label="(.*?)".*?<span.*?>(.*?)</span>', line)
        )
        for line in body.split("</tr>")
        if line
    }


def test_the_table_shows_mean_and_sample_deviation_over_seeds(tmp_path):
    tops = (0.70, 0.74, 0.81)
    runs = [
        make(tmp_path / str(i), rows({"1/2": 0.5, "1": top}), seed=i) for i, top in enumerate(tops)
    ]
    shown = cells(text_of(*runs))["fjord"]
    assert shown["seeds"] == "0, 1, 2"
    assert shown["width 1/2"] == "50.0 ± 0.0%"
    assert (
        shown["width 1"] == f"{100 * sum(tops) / 3:.1f} ± {100 * stdev(tops):.1f}%" == "75.0 ± 5.6%"
    )


def test_one_seed_has_no_deviation(tmp_path):
    text = text_of(make(tmp_path / "a"))
    assert cells(text)["fjord"]["width 1"] == "75.0%"
    assert "standard deviation" not in text


def test_runs_are_one_group_if_they_differ_in_nothing_that_changes_results(tmp_path):
    free = {
        "workers": 1,
        "checkpoint_seconds": 9.0,
        "log": ["wandb"],
        "recipe": {"name": "toy", "set": ["seed=1"]},
    }
    first, second = make(tmp_path / "a"), make(tmp_path / "b", seed=1, **free)
    assert [
        len(group.runs) for group in group_runs([first, second, RunFolder(tmp_path / "a")])
    ] == [2]
    slow, other = make(tmp_path / "c", lr=0.05), make(tmp_path / "d", method="efd")
    names = [group.name for group in group_runs([first, slow, other, second])]
    assert names == ["fjord (lr 0.1)", "fjord (lr 0.05)", "efd"]


def test_names_stay_distinct_where_settings_are_nested_or_too_long_to_show(tmp_path):
    nested = [
        make(tmp_path / f"n{n}", data={"function": "writers", "num_clients": n}) for n in (20, 40)
    ]
    assert [g.name for g in group_runs(nested)] == [
        "fjord (data.num_clients 20)",
        "fjord (data.num_clients 40)",
    ]
    long = [make(tmp_path / end, tiers="1/5:" + "0" * 40 + end) for end in "ab"]
    assert len({group.name for group in group_runs(long)}) == 2


def test_settings_that_differ_are_listed_and_the_best_mean_is_bold(tmp_path):
    text = text_of(
        make(tmp_path / "a"), make(tmp_path / "b", rows({"1/2": 0.6, "1": 0.7}), lr=0.05)
    )
    differ = text.split("Settings that differ")[1].split("</table>")[0]
    assert re.findall(r"<th scope='col'>(.*?)</th>", differ) == ["", "lr"]
    assert re.findall(r"class=best><span.*?>(.*?)</span>", text.split("to reach")[0]) == [
        "75.0%",
        "60.0%",
    ]


def test_a_method_with_a_model_for_each_width_is_read_across_its_stages(tmp_path):
    small = [r | {"target": "1/2", "shells": {"1/2": 3}} for r in rows({"1/2": 0.4})]
    large = [r | {"stage": 1} for r in rows({"1": 0.6})]
    shown = cells(text_of(make(tmp_path / "a", small + large, method="efd", targets=["1/2", "1"])))[
        "efd"
    ]
    assert (shown["rounds"], shown["width 1/2"], shown["width 1"]) == ("2 x 4", "40.0%", "60.0%")
    half = make(tmp_path / "b", small, method="efd", targets=["1/2", "1"])
    assert "4 of 4 rounds of model 1 of 2, of width 1/2, are done" in text_of(half), (
        "the wider model is still to come"
    )


def test_worst_decile_tiers_and_costs_equal_those_counted_by_hand(tmp_path):
    folder = make(tmp_path / "a", served=clients(25))
    run = group_runs([folder])[0].runs[0]
    worst = client_means(run, "accuracy")
    assert worst["worst"] == pytest.approx((0.00 + 0.01 + 0.02) / 3)  # a tenth of 25, rounded up
    assert worst["all"] == pytest.approx(0.12)
    assert client_means(run, "perplexity")["worst"] == pytest.approx((26 * 25 * 24) ** (1 / 3))
    assert tier_scores(run, "accuracy") == pytest.approx({Width("1/2"): 0.12, Width(1): 0.12})
    assert client_costs(run, "bytes_down", "bytes_up") == {Width("1/2"): 75, Width(1): 600}
    assert client_costs(run, "macs") == {Width("1/2"): 500, Width(1): 5000}
    assert "(3 of 25)" in text_of(folder)


def test_training_loss_is_a_running_mean_over_the_rounds_that_have_one(tmp_path):
    metrics = [row(i, loss=None if i == 1 else float(i)) for i in range(40)]
    run = group_runs([make(tmp_path / "a", metrics, num_rounds=40)])[0].runs[0]
    curve = loss_curve(run, Width(1))
    assert (curve[1], 2 in curve, curve[3], curve[40]) == (0.0, False, 1.0, 38.5)


@pytest.mark.parametrize(
    ("counts", "starving"),
    [([1, 1, 1, 1], False), ([0, 0, 2, 2], False), ([0, 0, 0, 9], True), ([0, 1, 1, 1], True)],
)
def test_a_shell_starves_below_one_client_a_round_or_in_under_half_the_rounds(
    tmp_path, counts, starving
):
    metrics = [row(i, SCORES, shells={"1/2": 3, "1": n}) for i, n in enumerate(counts)]
    text = text_of(make(tmp_path / "a", metrics))
    assert ("Warning: starving shells" in text) == ("shell 1 is starving" in text) == starving
    assert "shell 1/2 is starving" not in text
    assert ("Hatched" in text) == starving


def test_rounds_without_any_update_count_against_a_shell(tmp_path):
    empty = {"tiers": {}, "shells": {}, "loss": None, "dropped": {"7": "loss is not finite"}}
    folder = make(tmp_path / "a", [row(0, SCORES), *(row(i, SCORES, **empty) for i in (1, 2, 3))])
    found = {shell.width: shell for shell in shell_rows(group_runs([folder])[0].runs)}
    assert (found[Width("1/2")].clients, found[Width("1/2")].rounds, found[Width(1)].of_rounds) == (
        0.75,
        1,
        4,
    )
    text = text_of(folder)
    assert "3 updates of clients could not be used" in text
    assert "3 updates: loss is not finite" in text


def table_under(text, head):
    """The cells of each row of the table under a heading, the name of its group first."""
    body = text.split(f"<h2>{head}</h2>")[1].split("</table>")[0]
    lines = [line for line in body.split("<tbody>")[1].split("</tr>") if "<td" in line]
    return [re.findall(r"<(?:th scope='row'|span.*?)>(.*?)</", line) for line in lines]


def test_time_and_bytes_to_reach_a_score_over_seeds_and_groups(tmp_path):
    fast = [make(tmp_path / f"a{s}", clocked(rows(SCORES), 60.0 + 30 * s), seed=s) for s in (0, 1)]
    slow = make(tmp_path / "b", clocked(rows({"1/2": 0.3, "1": 0.8}), 100.0), method="efd")
    other = make(tmp_path / "c", method="fd")
    text = page.write_page([*fast, slow, other], tmp_path / "page.html", ["30%", "60%"]).read_text()
    time, size = (
        table_under(text, f"{what} to reach a test accuracy")
        for what in ("Simulated time", "Bytes")
    )
    # Tested after rounds 2 (half the score) and 4; 750 bytes a round; fd has no clock.
    assert time == [
        ["fjord", "30%", "5 ± 1.4 min", "2.5 ± 0.71 min"],
        ["efd", "30%", "6.67 min", "3.33 min"],
        ["fjord", "60%", "\N{EN DASH}", "5 ± 1.4 min"],
        ["efd", "60%", "\N{EN DASH}", "6.67 min"],
    ]
    assert size[0] == ["fjord", "30%", "3 ± 0 kB", "1.5 ± 0 kB"]
    assert [line[0] for line in size] == ["fjord", "efd", "fd"] * 2
    timed = text.split("Simulated time to reach")[1].split("</table>")[0]
    assert re.findall(r"class=best><span.*?>(.*?)</span>", timed) == [
        "5 ± 1.4 min",
        "2.5 ± 0.71 min",
        "5 ± 1.4 min",
    ]
    assert "Models that are trained one after the other" not in text
    with pytest.raises(ValueError, match="reach=700% is not an accuracy"):
        page.write_page([slow], tmp_path / "page.html", ["700%"])


def test_without_a_clock_there_are_bytes_but_no_time(tmp_path):
    text = text_of(make(tmp_path / "a"))
    assert ('id="over-bytes"' in text, 'id="over-time"' in text, "Simulated time" in text) == (
        True,
        False,
        False,
    )


def test_late_updates_are_counted_together_whatever_their_time(tmp_path):
    late = [
        row(i, SCORES, dropped={"7": f"later than the deadline: {i + 70.5} s"}) for i in range(4)
    ]
    assert "fjord: 4 updates: later than the deadline<" in text_of(make(tmp_path / "a", late))


def test_runs_from_before_a_setting_are_in_one_group_with_those_that_do_not_use_it(tmp_path):
    old, new = make(tmp_path / "a"), make(tmp_path / "b", seed=1, clock=None, deadline=None)
    assert [group.name for group in group_runs([old, new])] == ["fjord"]


def test_nothing_is_said_of_drops_where_there_are_none(tmp_path):
    assert "Dropped updates" not in text_of(make(tmp_path / "a"))


def test_clients_that_can_carry_no_model_are_counted(tmp_path):
    stranded = {
        "20": {"ceiling": "1/4", "width": None},
        "21": {"ceiling": "1/4", "width": None},
        "22": {},
    }
    text = text_of(make(tmp_path / "a", served=clients() | stranded))
    assert "3 of 23 clients have no model they can carry (2 of tier 1/4, 1 of tier unknown)" in text
    assert "A cross: a tier whose clients have no model they can carry" in text
    assert "(2 of 20)" in text, "the worst decile is of those that have a model"


def test_an_unfinished_run_is_drawn_and_said_to_be_one(tmp_path):
    text = text_of(make(tmp_path / "a", rows(SCORES)[:2], served=False))
    assert "Unfinished runs" in text
    assert "2 of 4 rounds are done; its numbers are those so far" in text
    assert cells(text)["fjord"]["width 1"] == "37.5%"
    assert 'id="convergence"' in text
    assert 'id="by-tier"' not in text


def test_an_unfinished_seed_does_not_blur_the_mean_of_finished_ones(tmp_path):
    text = text_of(
        make(tmp_path / "a"), make(tmp_path / "b", rows(SCORES)[:2], served=False, seed=1)
    )
    assert "left out, as other seeds are finished" in text
    assert cells(text)["fjord"] == {
        "seeds": "0",
        "rounds": "4",
        "width 1/2": "50.0%",
        "width 1": "75.0%",
    }


def test_a_run_without_rounds_still_has_a_page(tmp_path):
    text = text_of(make(tmp_path / "a", [], served=False))
    for said in (
        "no round is done yet",
        "No model has been evaluated yet",
        "There is nothing to draw yet",
    ):
        assert said in text
    assert "<svg" not in text


def test_perplexity_is_no_percentage_and_lower_is_better(tmp_path):
    runs = [make(tmp_path / str(s), rows({"1": s}), metric="perplexity", lr=s) for s in (0.2, 0.3)]
    text = text_of(*runs)
    assert cells(text)["fjord (lr 0.2)"]["width 1"] == "2.000"
    assert re.findall(r"class=best><span.*?>(.*?)</span>", text.split("to reach")[0]) == ["2.000"]
    assert "perplexity (lower is better)" in text


def test_a_diverged_seed_is_not_passed_over_in_silence(tmp_path):
    runs = [
        make(tmp_path / str(i), rows({"1": s}), seed=i) for i, s in enumerate((0.5, float("nan")))
    ]
    assert seed_stat([0.5, float("nan"), None]) == seed_stat([0.5])
    assert cells(text_of(*runs))["fjord"]["width 1"] == "50.0% (1 of 2 runs)"


def test_a_seed_that_occurs_twice_is_pointed_out(tmp_path):
    assert "seed 0 occurs more than once" in text_of(make(tmp_path / "a"), make(tmp_path / "b"))


def test_what_comes_from_files_is_escaped(tmp_path):
    evil = "<script>alert(1)</script> $\\frac{ & \"'"
    recipe = {"name": evil, "set": [evil]}
    dropped = [row(i, SCORES, dropped={"1": evil}) for i in range(4)]
    folders = [
        make(tmp_path / str(i), dropped, name=evil, method=evil, tiers=f"{evil}{i}", recipe=recipe)
        for i in (0, 1)
    ]
    folders[0].write_json("env.json", {"commit": evil})
    text = text_of(*folders)
    assert "<script" not in text
    assert "<title>&lt;script&gt;" in text
    assert text.count("&lt;script&gt;") > 20


def test_the_page_needs_nothing_else_and_says_where_each_figure_is_from(tmp_path):
    folders = [make(tmp_path / str(seed), seed=seed) for seed in (3, 4)]
    commit = folders[0].env["commit"]
    folders[1].write_json("env.json", {"commit": f"{commit}, c0ffee5"})  # was resumed
    text = text_of(*folders)
    assert not re.search(r"https?:|<script|<link|@import|<img|<iframe", text)
    assert all(
        address.startswith("#") for address in re.findall(r'(?:src|xlink:href)="([^"]*)"', text)
    )
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', text)) <= set(ids)
    origins = re.findall(r'class="origin">(.*?)</p>', text)
    assert len(origins) == text.count("<figure") == 9
    assert set(origins) == {f"recipe toy · method fjord, seeds 3, 4 · commit {commit}, c0ffee5"}


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = make(tmp_path / "a")
    assert text_of(folder) == text_of(folder)


def test_what_cannot_be_drawn_is_refused_in_words(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="at least one run folder"):
        page.write_page([], tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"there is no config\.json"):
        page.write_page([RunFolder(tmp_path)], tmp_path / "report.html")
    with pytest.raises(ValueError, match="not the run of a federated experiment"):
        page.write_page(
            [RunFolder.create(tmp_path / "svd", {"name": "theorem1", "seed": 0})],
            tmp_path / "report.html",
        )
    folder = make(tmp_path / "a")
    with pytest.raises(ValueError, match="cannot be written"):
        page.write_page([folder], tmp_path / "a" / "config.json" / "report.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'fjord-fl[plots]'")):
        text_of(folder)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no look at the page"
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine: no look at the page")
    with sync_api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One group; and several with long names, starving shells, drops and an unfinished run."""
    path = tmp_path_factory.mktemp("pages")
    served = clients() | {"20": {"ceiling": "1/4", "width": None}}
    hungry = [
        row(i, SCORES, shells={"1/2": 3, "1": 0}, dropped={"1": "late" * 60}) for i in range(4)
    ]
    runs = [
        make(path / f"{lr}-{s}", lr=lr, seed=s, tiers="x" * 200)
        for lr in (0.1, 0.05, 0.01)
        for s in (0, 1)
    ]
    runs += [
        make(path / "h", hungry, served, method="m" * 120),
        make(path / "u", [], served=False, method="efd"),
    ]
    timed = [
        make(path / f"t-{m}-{s}", clocked(rows(SCORES), 900.0 + 50 * s), method=m, seed=s)
        for m in ("fjord", "efd")
        for s in (0, 1)
    ]
    return {
        "timed": page.write_page(timed, path / "timed.html", ["20%", "70%"]),
        "one": page.write_page([make(path / "one")], path / "one.html"),
        "many": page.write_page(runs, path / "many.html"),
        "empty": page.write_page(runs[-1:], path / "empty.html"),
    }


SMALLEST_TEXT = """() => Math.min(...[...document.querySelectorAll('figure > svg')].flatMap(svg =>
  [...svg.querySelectorAll('text')].map(t =>
    parseFloat(getComputedStyle(t).fontSize)
      * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)))"""
CLIPPED = """() => [...document.querySelectorAll('figure > svg text')].filter(t => {
  const box = t.getBoundingClientRect(), all = t.closest('svg').getBoundingClientRect();
  return box.left < all.left - 1 || box.right > all.right + 1
    || box.top < all.top - 1 || box.bottom > all.bottom + 1;
}).map(t => t.textContent)"""
OVERLAPPING = """() => [...document.querySelectorAll('figure > svg')].flatMap(svg =>
  ['matplotlib.axis_1', 'matplotlib.axis_2'].flatMap(axis => {
    const texts = [...svg.querySelectorAll(`g[id*="${axis}"] text`)]
      .map(t => [t.textContent, t.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
      && a.top < b.bottom - 3 && b.top < a.bottom - 3;
    return texts.flatMap(([t, a], i) =>
      texts.slice(i + 1).filter(([_, b]) => meet(a, b)).map(([u, _]) => [t, u]));
  }))"""


@pytest.mark.parametrize("size", [(375, 812), (1280, 900)], ids=["phone", "desk"])
@pytest.mark.parametrize("name", ["one", "many", "empty", "timed"])
def test_in_a_browser_the_page_fits_is_legible_and_asks_for_nothing(browser, pages, name, size):
    tab = browser.new_page(viewport={"width": size[0], "height": size[1]})
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(pages[name].as_uri())
    assert said == []
    assert asked == [pages[name].as_uri()]
    for closed in tab.locator("summary").all():
        closed.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    figures = tab.locator("figure").all()
    assert len(figures) == {"one": 9, "many": 10, "empty": 0, "timed": 11}[name]
    for figure in figures:
        box = figure.locator("> svg").bounding_box()
        assert box
        assert min(box["width"], box["height"]) > 150
        assert figure.locator("> svg text").count() >= 4
        assert figure.locator(".legend li").first.is_visible()
    if figures:
        assert tab.evaluate(SMALLEST_TEXT) >= 8
        assert tab.evaluate(CLIPPED) == []
        assert tab.evaluate(OVERLAPPING) == []
        columns = {round(figure.bounding_box()["x"]) for figure in figures}
        assert len(columns) == (1 if size[0] == 375 else 3)
    tab.close()
