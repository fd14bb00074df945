"""The one error a model that cannot be made elastic raises."""


class ElasticityError(ValueError):
    """The model, or a part of it, cannot be made elastic; the message says which and what to do."""


ADVICE = (
    "What to do: keep the layer whole with freeze=['<its name>*'], give the operation a rule with "
    "rules={torch.ops...: function}, or build each width yourself with factory=function(width)."
)
