"""Record a terminal as a picture: `python docs/pictures/record.py` writes first-minute.svg.

Everything in the picture was printed by the commands in it, in an empty directory. Ports and sizes differ
from run to run.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "first-minute.svg"
COLUMNS, LINE, FONT = 92, 21, 14
#: What a reader sees first: append, read, be killed, find everything, check every byte.
COMMANDS = (
    "printf 'anna:axe\\nbela:saw\\nanna:maul\\n' | cordwood produce -t orders -K :",
    "cordwood consume -t orders -e -f '%o %k=%s\\n'",
    "cordwood serve --listen 127.0.0.1:0 & sleep 5; kill -9 $!    # and nothing is lost",
    "cordwood consume -t orders -e -o 2",
    "cordwood verify",
)
STYLE = """\
<style>
text { font: %dpx ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #f1dfbd; }
.command { fill: #8fbe8f; font-weight: bold; }
</style>"""


def output_of(command: str, directory: str) -> list[str]:
    """Run a command in a shell and return the lines that it printed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "CORDWOOD_DATA_DIR": "data"}
    run = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    return [piece for line in run.stdout.splitlines() for piece in textwrap.wrap(line, COLUMNS) or [""]]


def slower(command: str, slowdown: float) -> str:
    """Return *command* with longer waits."""
    return re.sub(r"sleep (\d+)", lambda found: f"sleep {math.ceil(int(found[1]) * slowdown)}", command)


def drawn(lines: list[tuple[str, str]]) -> str:
    """Return lines, each with its class, as a picture."""
    width, height = COLUMNS * FONT * 0.61 + 32, len(lines) * LINE + 28
    rows = [
        f'<text x="16" y="{28 + number * LINE}" class="{kind}" xml:space="preserve">{escape(line)}</text>'
        for number, (kind, line) in enumerate(lines)
    ]
    said = "Records are produced and consumed, a server is killed, everything is found and verified"
    box = f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{said}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
            STYLE % FONT,
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1e1814"/>',
            *rows,
            "</svg>\n",
        ]
    )


def recorded(slowdown: float = 1.0) -> list[tuple[str, str]]:
    """Run every command, and return the lines of the picture, each with its class.

    The server gets the time that the picture says, *slowdown* times on a machine that is so much slower.
    """
    lines: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as directory:
        for command in COMMANDS:
            lines.append(("command", f"$ {command}"))
            lines += [("output", line) for line in output_of(slower(command, slowdown), directory)]
    return lines


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(drawn(recorded()))


if __name__ == "__main__":
    main()
