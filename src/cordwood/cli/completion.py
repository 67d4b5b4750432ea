"""``cordwood completion``: print a shell's completion script for commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cordwood.cli import main


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Example: cordwood completion bash >> ~/.bashrc
    """
    found = get_completion_class(shell)
    assert found is not None
    made = found(main, {}, "cordwood", "_CORDWOOD_COMPLETE")
    # Not through source(), which first runs the shell to find its version.
    click.echo(made.source_template % made.source_vars())
