"""`python -m fedmon` is the `fedmon` command."""

from fedmon.cli import main

main()
