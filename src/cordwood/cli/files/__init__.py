"""Commands that work on the files of a data directory.

Verify, segment, reindex, maintain, backup, restore, import, export.
"""

from cordwood.cli.files.maintain import KEPT_UP_BY_ITSELF, print_compacted
from cordwood.cli.files.reindex import NOT_BESIDE_A_SERVER, print_reindex_report, reindex_exit_code
from cordwood.cli.files.verify import print_verify_report, verify_exit_code

__all__ = [
    "KEPT_UP_BY_ITSELF",
    "NOT_BESIDE_A_SERVER",
    "print_compacted",
    "print_reindex_report",
    "print_verify_report",
    "reindex_exit_code",
    "verify_exit_code",
]
