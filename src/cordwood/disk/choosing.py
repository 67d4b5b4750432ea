"""The file system to open a data directory with, as the settings choose it."""

from __future__ import annotations

from cordwood.config import BrokerConfig
from cordwood.disk.direct import DirectFiles
from cordwood.disk.files import join
from cordwood.disk.posix import GROUP, PRIVATE, PosixFiles, mode_of


def files_of(data: str, config: BrokerConfig) -> PosixFiles:
    """Return the file system to open the data directory *data* with, which need not exist yet.

    With ``cordwood.io=direct`` files are read and written past the page cache. New files are for the group as
    well if *config* says so, or if the directory was created so: processes that open it later, such as tasks
    of Spark, need no setting.
    """
    mode = mode_of(join(data, "meta"))
    is_shared = mode is not None and mode & GROUP.directory == GROUP.directory
    kind = DirectFiles if config.io == "direct" else PosixFiles
    return kind(GROUP if config.file_mode == "group" or is_shared else PRIVATE)
