"""``python -m undrift`` is the command line."""

from undrift.cli.main import main

main()
