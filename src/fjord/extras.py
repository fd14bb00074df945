"""How to get what is not installed by default."""


def how_to_install(extra: str) -> str:
    """Return what to type for an optional part of this package.

    >>> how_to_install("flower")
    "pip install 'fjord-fl[flower]', or in a clone: pip install -c constraints.txt torch '.[flower]'"
    """
    return f"pip install 'fjord-fl[{extra}]', or in a clone: pip install -c constraints.txt torch '.[{extra}]'"
