"""The keys under which an elastic model stores its tensors."""

from fractions import Fraction
from typing import NamedTuple

from fjord.core.width import Width


class TensorKey(NamedTuple):
    """The name of a tensor, and the width it is stored for if each width has its own.

    Dictionaries and files use the text form as the key. BatchNorm statistics measured for a
    submodel whose layers have different widths carry a label such as `mix-0` instead of a width.

    >>> str(TensorKey("bn1.weight", Width("2/5")))
    'bn1.weight@2/5'
    >>> str(TensorKey("conv1.weight"))
    'conv1.weight'
    >>> TensorKey.parse("bn1.weight@2/5")
    TensorKey(name='bn1.weight', width=Fraction(2, 5))
    >>> TensorKey.parse("bn1.running_mean@mix-0").width
    'mix-0'
    """

    name: str
    width: Width | str | None = None

    def __str__(self) -> str:
        if self.width is None:
            return self.name
        return f"{self.name}@{self.width}"

    @classmethod
    def parse(cls, text: str) -> "TensorKey":
        """Return the key that a text form stands for."""
        name, separator, label = text.partition("@")
        if not separator:
            return cls(name)
        try:
            return cls(name, Fraction(label))
        except ValueError:
            return cls(name, label)
