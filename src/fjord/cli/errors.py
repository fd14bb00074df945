"""Errors in the words of the command line: a field is shown as the option it came from."""

import sys
from collections.abc import Sequence

import click
import typer
from rich.console import Console

from fjord.core.errors import SettingError, UserError


def run_command_line(app: typer.Typer, program: str) -> None:
    """Run a program's commands; what a user got wrong is one line, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as error:
        text = command_line_text(error, app, sys.argv[1:])
        console = Console(stderr=True, highlight=False)
        console.print(f"{program}: {text}", markup=False, soft_wrap=True)
        sys.exit(2)


def command_line_text(error: UserError, app: typer.Typer, words: Sequence[str]) -> str:
    """Return an error as one line about the words that were typed.

    A setting is shown as `--set key=value` where it was typed so, another field as the option of
    the running command that has its name. What is neither keeps the words of a Python user.
    """
    command = running_command(typer.main.get_command(app), words)
    options = option_names(command)
    is_setting = isinstance(error, SettingError)
    if error.field in options and not is_setting:
        option = options[error.field]
        return _joined_text(option, " ", error)
    if error.field and is_typed_setting(error.field, words):
        return _joined_text(f"--set {error.field}", "=", error)
    return str(error)


def _joined_text(place: str, separator: str, error: UserError) -> str:
    if error.value is None:
        return f"{place}: {error.message}"
    return f"{place}{separator}{error.value}: {error.message}"


def running_command(command: click.Command, words: Sequence[str]) -> click.Command:
    """Follow the typed words from the whole program down to one of its commands."""
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.commands.get(word, command)
    return command


def option_names(command: click.Command) -> dict[str, str]:
    """Return the parameters of a command as they are typed: options with dashes, arguments plain.

    >>> @click.command
    ... @click.argument("recipe")
    ... @click.option("--min-replies")
    ... def run(recipe, min_replies): ...
    >>> option_names(run)
    {'recipe': 'recipe', 'min_replies': '--min-replies'}
    """
    names = {}
    for parameter in command.params:
        if parameter.name:
            names[parameter.name] = max(parameter.opts, key=len)
    return names


def is_typed_setting(name: str, words: Sequence[str]) -> bool:
    """Say whether a setting was typed as `--set name=...`, in one word or two.

    >>> is_typed_setting("lr", ["run", "--set", "lr=0.1"]), is_typed_setting("lr", ["run", "lr"])
    (True, False)
    """
    previous = ""
    for word in words:
        if word.startswith("--set="):
            setting = word.removeprefix("--set=")
        elif previous == "--set":
            setting = word
        else:
            setting = ""
        if setting.partition("=")[0] == name:
            return True
        previous = word
    return False
