"""``python -m cordwood.cli``: the command line without its script."""

from cordwood.cli import run

run()
