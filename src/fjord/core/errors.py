"""The error for what a user got wrong, and the nearest name where a name is mistyped."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Says in one line what is wrong with what the user gave.

    `field` names the argument or setting the message speaks of, and `value` what was given for it
    (None: nothing). The message follows the field, so that it begins with a verb: a Python user
    reads `field=value message`, and a user of the command line the option in place of the field.

    >>> str(UserError("must be at least 1", field="workers", value=0))
    'workers=0 must be at least 1'
    >>> str(UserError("is needed by the engine 'flower'", field="superlink"))
    "superlink is needed by the engine 'flower'"
    """

    def __init__(self, message: str, *, field: str = "", value: object = None) -> None:
        self.message = message
        self.field = field
        self.value = value
        super().__init__(self._text())

    def _text(self) -> str:
        if not self.field:
            return self.message
        if self.value is None:
            return f"{self.field} {self.message}"
        return f"{self.field}={self.value} {self.message}"


class SettingError(UserError):
    """Says what is wrong with a setting of an experiment; `field` is its name."""


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a question about the nearest known name, or no text where none is near.

    >>> suggest_name("fjrod", ["fedavg", "fjord"])
    ' (did you mean fjord?)'
    >>> suggest_name("something", ["fedavg", "fjord"])
    ''
    """
    nearest = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""
