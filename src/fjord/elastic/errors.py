"""The one error a model that cannot be made elastic raises."""

from fjord.core.errors import UserError


class ElasticityError(UserError):
    """The model, or a part of it, cannot be made elastic; the message says which and what to do."""


ADVICE = (
    "What to do: keep the layer whole with freeze=['<its name>*'], give the operation a rule with "
    "rules={torch.ops...: function}, or build each submodel yourself with factory=function(kept)."
)
FORWARD_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AssertionError,
    AttributeError,
    KeyError,
)
"""What a user's forward raises when a size, a device or a precision does not fit."""
