"""The command line. Every command is a few lines over the library.

`run` is the program ``cordwood``. Importing this module costs next to nothing, so that Ctrl-C is answered in
the same way while everything else is imported.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from cordwood.lazily import lazily

if TYPE_CHECKING:
    from cordwood.cli.commands import ExitCode, main

__all__ = ["INTERRUPTED", "ExitCode", "main", "report_interrupt", "run"]

#: The exit status after Ctrl-C, as a shell expects it.
INTERRUPTED = 130


def run() -> None:
    """Run the command that the arguments of this process name, and end the process."""
    try:
        from cordwood.cli.commands import main

        main()
    except KeyboardInterrupt:
        report_interrupt()
        raise SystemExit(INTERRUPTED) from None
    finally:
        # Everything is done: from here on Ctrl-C ends the process at once, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def report_interrupt() -> None:
    """Print one line that says that the command ended because of Ctrl-C."""
    # A terminal shows ^C where the cursor was.
    below = "\n" if sys.stderr.isatty() else ""
    print(f"{below}cordwood: interrupted", file=sys.stderr)


if not TYPE_CHECKING:
    _find = lazily(__name__, {"ExitCode": "cordwood.cli.commands", "main": "cordwood.cli.commands"})

    def __getattr__(name: str) -> Any:
        return _find(name)
