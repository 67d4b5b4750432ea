"""The permissions of the files of a data directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from cordwood.config import load_broker_config
from cordwood.disk import GROUP, files_of
from cordwood.inspection.findings import CheckedItem, Level
from cordwood.storage.chain import key_path

_NAMES_SHOWN = 3


def examine_permissions(path: str) -> Iterator[CheckedItem]:
    """Yield findings about the permissions of all files and directories below *path*.

    Cordwood never changes the permissions of an existing file, so files of an earlier version keep theirs.
    """
    mode = files_of(path, load_broker_config()[0]).mode
    wide, narrow, looked_at = [], [], 0
    for name, found in _below(path):
        looked_at += 1
        wanted = mode.directory if stat.S_ISDIR(found) else mode.file
        if found & 0o077 & ~wanted:
            wide.append(name)
        elif mode == GROUP and wanted & 0o070 & ~found and name != key_path(path):
            narrow.append(name)
    of_all = f"of {looked_at:,} files and directories"
    if wide:
        who = "other users" if mode == GROUP else "others than their owner"
        text = f"{_shown(wide, path)} {of_all} can be used by {who}: they were made so, and are left so"
        yield CheckedItem(
            "permissions", Level.NOTE, text, f"to change it: {_command(path, group=mode == GROUP)}"
        )
    if narrow:
        text = f"{_shown(narrow, path)} {of_all} cannot be used by the group: cordwood.file.mode is group"
        yield CheckedItem("permissions", Level.NOTE, text, f"to change it: {_command(path, group=True)}")
    if not wide and not narrow:
        who = "their owner and its group" if mode == GROUP else "their owner"
        yield CheckedItem("permissions", Level.OK, f"all files can be used by {who} only")


def _below(path: str) -> Iterator[tuple[str, int]]:
    """Yield the path and the permissions of every file and directory below *path*."""
    for directory, directories, names in os.walk(path):
        for name in (*directories, *names):
            place = os.path.join(directory, name)
            try:
                found = os.lstat(place).st_mode
            except OSError:
                # Gone meanwhile.
                continue
            if stat.S_ISREG(found) or stat.S_ISDIR(found):
                yield place, found


def _command(path: str, *, group: bool) -> str:
    if not group:
        return f"chmod -R go-rwx {path}"
    key = key_path(path)
    widen = f"chmod -R u+rwX,g+rwX,o-rwx {path} && find {path} -type d -exec chmod g+s {{}} +"
    return f"{widen} && chmod 600 {key}" if os.path.exists(key) else widen


def _shown(paths: list[str], path: str) -> str:
    names = ", ".join(os.path.relpath(each, path) for each in paths[:_NAMES_SHOWN])
    more = ", …" if len(paths) > _NAMES_SHOWN else ""
    return f"{len(paths):,} ({names}{more})"
