"""``python -m undrift`` is the command line."""

from undrift.cli import main

main()
