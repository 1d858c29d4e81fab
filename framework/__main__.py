"""``python -m framework``: the same commands as ``application-worker``."""

from framework.cli.main import main

main()
