"""How to install the optional parts of this package."""


def install_hint(extra: str) -> str:
    """Return the command that installs an optional part of this package.

    >>> print(install_hint("flower"))
    pip install 'fjord-fl[flower]', or in a clone: pip install -c constraints.txt torch '.[flower]'
    """
    from_index = f"pip install 'fjord-fl[{extra}]'"
    from_clone = f"pip install -c constraints.txt torch '.[{extra}]'"
    return f"{from_index}, or in a clone: {from_clone}"
