"""How to get what is not installed by default."""


def install_hint(extra: str) -> str:
    """Return what to type for an optional part of this package.

    >>> install_hint("flower")
    "pip install 'fjord-fl[flower]', or in a clone: pip install -c constraints.txt torch '.[flower]'"
    """
    return f"pip install 'fjord-fl[{extra}]', or in a clone: pip install -c constraints.txt torch '.[{extra}]'"
