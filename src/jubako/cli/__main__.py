"""`python -m jubako.cli`."""

from . import main

main()
