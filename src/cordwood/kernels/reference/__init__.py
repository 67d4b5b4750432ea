"""The kernels in plain Python, which document what each kernel does.

They run where there was no C compiler at installation. Tests in tests/kernels compare the compiled kernels
with them, byte for byte and error for error.
"""

from cordwood.kernels.reference.bounds import (
    readonly,
)
from cordwood.kernels.reference.columns import (
    lay_out,
)
from cordwood.kernels.reference.compaction import (
    KeyMap,
    keep_records,
)
from cordwood.kernels.reference.decoding import (
    decode_columns,
    decode_rows,
    scan_headers,
    walk_records,
)
from cordwood.kernels.reference.encoding import (
    encode_columns,
    encode_rows,
)
from cordwood.kernels.reference.hashing import (
    hash_records,
    list_roots,
)
from cordwood.kernels.reference.partitioning import (
    murmur2,
    partition_keys,
)

__all__ = [
    "KeyMap",
    "decode_columns",
    "decode_rows",
    "encode_columns",
    "encode_rows",
    "hash_records",
    "keep_records",
    "lay_out",
    "list_roots",
    "murmur2",
    "partition_keys",
    "readonly",
    "scan_headers",
    "walk_records",
]
