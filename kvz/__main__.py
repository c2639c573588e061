"""`python -m kvz` is `kvz`."""

from kvz.cli.main import main

main()
