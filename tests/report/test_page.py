"""The page of run folders, as a whole and in a real browser."""

import re
import shutil
import sys

import pytest
from report_runs import (
    SCORES,
    four_rounds,
    make_run,
    page_text,
    rising_clients,
    round_row,
    with_clock,
)

from fjord.experiments.runs import RunFolder
from fjord.report import page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


def test_without_a_clock_there_are_bytes_but_no_time(tmp_path):
    text = page_text(make_run(tmp_path / "a"))
    assert ('id="over-bytes"' in text, 'id="over-time"' in text, "Simulated time" in text) == (
        True,
        False,
        False,
    )


def test_a_run_without_rounds_still_has_a_page(tmp_path):
    text = page_text(make_run(tmp_path / "a", [], served=False))
    for said in (
        "no round is done yet",
        "No model has been evaluated yet",
        "There is nothing to draw yet",
    ):
        assert said in text
    assert "<svg" not in text


def test_what_comes_from_files_is_escaped(tmp_path):
    evil = "<script>alert(1)</script> $\\frac{ & \"'"
    recipe = {"name": evil, "set": [evil]}
    dropped = [round_row(i, SCORES, dropped={"1": evil}) for i in range(4)]
    folders = [
        make_run(
            tmp_path / str(i), dropped, name=evil, method=evil, tiers=f"{evil}{i}", recipe=recipe
        )
        for i in (0, 1)
    ]
    folders[0].write_json("env.json", {"commit": evil})
    text = page_text(*folders)
    assert "<script" not in text
    assert "<title>&lt;script&gt;" in text
    assert text.count("&lt;script&gt;") > 20


def test_the_page_needs_nothing_else_and_says_where_each_figure_is_from(tmp_path):
    folders = [make_run(tmp_path / str(seed), seed=seed) for seed in (3, 4)]
    commit = folders[0].env["commit"]
    folders[1].write_json("env.json", {"commit": f"{commit}, c0ffee5"})  # was resumed
    text = page_text(*folders)
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
    folder = make_run(tmp_path / "a")
    assert page_text(folder) == page_text(folder)


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
    folder = make_run(tmp_path / "a")
    with pytest.raises(ValueError, match="cannot be written"):
        page.write_page([folder], tmp_path / "a" / "config.json" / "report.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'fjord-fl[plots]'")):
        page_text(folder)


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
    served = rising_clients() | {"20": {"ceiling": "1/4", "width": None}}
    hungry = [
        round_row(i, SCORES, shells={"1/2": 3, "1": 0}, dropped={"1": "late" * 60})
        for i in range(4)
    ]
    runs = [
        make_run(path / f"{lr}-{s}", lr=lr, seed=s, tiers="x" * 200)
        for lr in (0.1, 0.05, 0.01)
        for s in (0, 1)
    ]
    runs += [
        make_run(path / "h", hungry, served, method="m" * 120),
        make_run(path / "u", [], served=False, method="efd"),
    ]
    timed = [
        make_run(
            path / f"t-{m}-{s}", with_clock(four_rounds(SCORES), 900.0 + 50 * s), method=m, seed=s
        )
        for m in ("fjord", "efd")
        for s in (0, 1)
    ]
    return {
        "timed": page.write_page(timed, path / "timed.html", ["20%", "70%"]),
        "one": page.write_page([make_run(path / "one")], path / "one.html"),
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
