"""`python -m fjord.cli`."""

from fjord.cli import main

main()
