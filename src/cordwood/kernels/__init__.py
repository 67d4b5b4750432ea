"""Hot byte loops on buffers: the compiled kernels if they were built, else the reference.

`reference` documents each function. `COMPILED` says which kernels run, and `NOTICE` what the reference costs.
``cordwood doctor``, ``make setup`` and ``python -m cordwood.kernels`` tell people. Importing this package
does not: a warning in every command would be the same message again and again.
"""

from __future__ import annotations

from cordwood.kernels.layout import (
    HEADER,
    HEADER_COLUMNS,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    ITEM_SIZE,
    LENGTH_OVERHEAD,
    NO_KEY,
    NO_VALUE,
    SALT_SIZE,
    BinaryBuffers,
    Buffer,
    ColumnBuffers,
    HeaderBuffers,
    HeaderColumn,
    Stop,
    Want,
)

NOTICE = (
    "cordwood runs on its plain Python kernels: there was no C compiler when it was installed. "
    "Everything works and every check is made, but encoding records takes about 50 times, decoding about "
    "130 times and hashing about 14 times as long. Install a C compiler and Python's headers (Debian: gcc "
    "python3-dev), then install again (in a checkout: make clean setup)."
)

try:
    from cordwood.kernels._compact import KeyMap, keep_records
    from cordwood.kernels._decode import decode_columns, decode_rows, scan_headers, walk_records
    from cordwood.kernels._encode import encode_columns, encode_rows, murmur2, partition_keys
    from cordwood.kernels._hash import hash_records, list_roots
    from cordwood.kernels._memory import readonly

    COMPILED = True
except ImportError:
    from cordwood.kernels.reference import (
        KeyMap,
        decode_columns,
        decode_rows,
        encode_columns,
        encode_rows,
        hash_records,
        keep_records,
        list_roots,
        murmur2,
        partition_keys,
        readonly,
        scan_headers,
        walk_records,
    )

    COMPILED = False

__all__ = [
    "COMPILED",
    "HEADER",
    "HEADER_COLUMNS",
    "HEADER_SIZE",
    "INT32_MAX",
    "INT64_MAX",
    "INT64_MIN",
    "ITEM_SIZE",
    "LENGTH_OVERHEAD",
    "NOTICE",
    "NO_KEY",
    "NO_VALUE",
    "SALT_SIZE",
    "BinaryBuffers",
    "Buffer",
    "ColumnBuffers",
    "HeaderBuffers",
    "HeaderColumn",
    "KeyMap",
    "Stop",
    "Want",
    "decode_columns",
    "decode_rows",
    "encode_columns",
    "encode_rows",
    "hash_records",
    "keep_records",
    "list_roots",
    "murmur2",
    "partition_keys",
    "readonly",
    "scan_headers",
    "walk_records",
]
