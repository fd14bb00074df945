"""The one error for what a user got wrong."""


class UserError(ValueError):
    """Says in one line what is wrong with what the user gave.

    `field` names the argument or setting the message speaks of, and `value` what was given for it. The command
    line shows the field as the option it came from.

    >>> str(UserError("must be at least 1", field="workers", value=0))
    'workers=0 must be at least 1'
    """

    def __init__(self, message: str, *, field: str = "", value: object = None) -> None:
        self.message = message
        self.field = field
        self.value = value
        super().__init__(f"{field}={value} {message}" if field else message)
