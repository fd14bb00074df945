"""Draw run folders as one HTML page that needs nothing else: no network, no other file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fjord.core.errors import UserError
from fjord.experiments.runs import RunFolder
from fjord.report.cards import CardScope
from fjord.report.cost_cards import cost_cards
from fjord.report.cost_to_score import parse_level, usual_levels
from fjord.report.groups import (
    ReportRun,
    RunGroup,
    group_runs,
    join_words,
    run_commits,
    runs_of,
)
from fjord.report.notices import count_noun, page_notices, update_notices
from fjord.report.score_cards import score_cards
from fjord.report.tables import cost_tables, score_table, settings_table
from fjord.report.templating import render_template

SHAPES = {
    "o": "M9 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "s": "M9.5 2.5h7v7h-7z",
    "^": "M13 1.5l4.5 8.5h-9z",
    "D": "M13 1l5 5l-5 5l-5-5z",
    "v": "M13 10.5l4.5-8.5h-9z",
    "P": "M11.5 2h3v2.5H17v3h-2.5V10h-3V7.5H9v-3h2.5z",
    "X": "M9 4l2-2l2 2l2-2l2 2l-2 2l2 2l-2 2l-2-2l-2 2l-2-2l2-2z",
}
"""matplotlib's markers as paths of SVG, for the legend."""
DASHES = {"-": "none", "--": "6 3", ":": "2 2", "-.": "6 2 2 2"}
"""matplotlib's line styles as dashes of SVG."""


@dataclass(frozen=True)
class GroupDetails:
    """All settings of a group, and where each of its runs comes from."""

    name: str
    runs: Sequence[str]
    settings: str


def write_page(runs: list[RunFolder], target: Path, reach: Sequence[str] = ()) -> Path:
    """Draw runs as one self-contained HTML page; those that differ only in their seed are averaged.

    `reach` are the scores, such as 70%, for which the page says what it took to reach them.
    """
    text = _render_page(group_runs(runs), reach)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"page {target}: cannot be written: {error}") from error
    return target


def _render_page(groups: Sequence[RunGroup], reach: Sequence[str]) -> str:
    first_run = groups[0].all_runs[0]
    metric = str(first_run.config["metric"])
    levels = [parse_level(text, metric) for text in reach]
    if not levels:
        levels = usual_levels(runs_of(groups), metric)
    scope = CardScope(groups, metric)
    return render_template(
        "report.html",
        title=_page_title(groups),
        subtitle=_page_subtitle(groups, metric),
        notices=list(page_notices(groups, metric)),
        score_tables=[score_table(groups, metric), *cost_tables(groups, metric, levels)],
        cards=[*score_cards(scope), *cost_cards(scope)],
        shapes=SHAPES,
        dashes=DASHES,
        origin=_figure_origin(groups),
        update_notices=list(update_notices(groups)),
        settings_table=settings_table(groups),
        group_details=[_group_details(group) for group in groups],
    )


def _page_title(groups: Sequence[RunGroup]) -> str:
    recipes = join_words(run.config["name"] for run in _all_runs(groups))
    names = " vs ".join(group.name for group in groups)
    return f"{recipes}: {names}"


def _all_runs(groups: Sequence[RunGroup]) -> list[ReportRun]:
    """Return the runs of all groups, unfinished ones too."""
    runs: list[ReportRun] = []
    for group in groups:
        runs.extend(group.all_runs)
    return runs


def _page_subtitle(groups: Sequence[RunGroup], metric: str) -> str:
    all_runs = _all_runs(groups)
    better = "lower"
    if metric == "accuracy":
        better = "higher"
    run_count = count_noun(len(all_runs), "run")
    group_count = count_noun(len(groups), "group")
    counts = f"{run_count} in {group_count}"
    commits = run_commits(all_runs)
    return f"Test {metric}, {better} is better. {counts}; commit {commits}."


def _figure_origin(groups: Sequence[RunGroup]) -> str:
    """Return recipe, method, seeds and commits: a number is worth nothing without them."""
    runs = runs_of(groups)
    methods = []
    for group in groups:
        noun = "seed"
        if len(group.runs) > 1:
            noun = "seeds"
        methods.append(f"{group.name}, {noun} {group.seeds}")
    recipes = join_words(run.recipe for run in runs)
    all_methods = "; ".join(methods)
    commits = run_commits(runs)
    return f"recipe {recipes} · method {all_methods} · commit {commits}"


def _group_details(group: RunGroup) -> GroupDetails:
    config = dict(group.all_runs[0].config)
    config.pop("seed")
    config.pop("recipe", None)
    settings = json.dumps(config, indent=2, ensure_ascii=False)
    origins = [_run_origin(run) for run in group.all_runs]
    return GroupDetails(group.name, origins, settings)


def _run_origin(run: ReportRun) -> str:
    recipe_config = run.config.get("recipe") or {}
    recipe = run.recipe
    for text in recipe_config.get("set", []):
        recipe += f" --set {text}"
    parts = []
    for key, value in run.env.items():
        parts.append(f"{key} {value}")
    machine = ", ".join(parts)
    seed = run.config["seed"]
    return f"seed {seed}: {run.path}; recipe {recipe}; {machine}"
