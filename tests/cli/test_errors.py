"""Errors in the words of the command line."""

import pytest

from fjord.cli import app
from fjord.cli.errors import command_line_text
from fjord.core.errors import SettingError, UserError


@pytest.mark.parametrize(
    ("error", "words", "text"),
    [
        (
            UserError("must be above 0", field="deadline", value=0),
            ["run", "--deadline", "0"],
            "--deadline 0: must be above 0",
        ),
        (
            UserError("must be at least 1", field="min_replies", value=0),
            ["run", "demo", "--min-replies=0"],
            "--min-replies 0: must be at least 1",
        ),
        (
            UserError("is needed", field="superlink"),
            ["run", "--engine", "flower"],
            "--superlink: is needed",
        ),
        (
            UserError("must be at least 1", field="nodes", value=0),
            ["fleet", "up", "--nodes", "0"],
            "--nodes 0: must be at least 1",
        ),
        (
            UserError("is unknown", field="recipe", value="x"),
            ["run", "x"],
            "recipe x: is unknown",
        ),
        (
            SettingError("must be above 0", field="deadline", value=0),
            ["run", "--deadline", "9", "--set", "deadline=0"],
            "--set deadline=0: must be above 0",
        ),
        (
            UserError("is not a file", field="clock", value="x"),
            ["run", "--set=clock=x"],
            "--set clock=x: is not a file",
        ),
        (
            SettingError("must be above 0", field="lr", value=0),
            ["run", "own_recipe.py"],
            "lr=0 must be above 0",
        ),
        (
            UserError("must be above 0", field="unrelated", value=0),
            ["run"],
            "unrelated=0 must be above 0",
        ),
        (
            UserError("runs/x: there is no config.json"),
            ["report"],
            "runs/x: there is no config.json",
        ),
    ],
)
def test_a_field_is_shown_as_it_was_typed(error, words, text):
    assert command_line_text(error, app, words) == text
