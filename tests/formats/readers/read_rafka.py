"""Read a Rafka log by its offset index: a second reader, from the table of its documentation alone.

Run it as ``python read_rafka.py DIRECTORY``; it prints a line of JSON for every record.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield every record of all index files, in order, with its global id and its virtual offset.

    An entry has 40 bytes: segment id, physical offset and length u32, org id u64, topic hash u128,
    partition u32. The virtual offset is how many records of the same key came before.
    """
    logs: dict[int, bytes] = {}
    seen: Counter[str] = Counter()
    global_id = 0
    for segment in sorted(int(path.stem) for path in directory.glob("*.oidx")):
        index = (directory / f"{segment}.oidx").read_bytes()
        for at in range(0, len(index), 40):
            segment_id, physical, length = (
                int.from_bytes(index[at + part : at + part + 4], "little") for part in (0, 4, 8)
            )
            org = int.from_bytes(index[at + 12 : at + 20], "little")
            topic_hash = int.from_bytes(index[at + 20 : at + 36], "little")
            partition = int.from_bytes(index[at + 36 : at + 40], "little")
            if segment_id not in logs:
                logs[segment_id] = (directory / f"{segment_id}.log").read_bytes()
            log = logs[segment_id]
            if int.from_bytes(log[physical - 4 : physical], "little") != length:
                raise ValueError(f"record {global_id} has another length before it")
            key = f"{org}-{topic_hash}-{partition}"
            yield {
                "global_id": global_id,
                "key": key,
                "virtual_offset": seen[key],
                "bytes": log[physical : physical + length],
            }
            seen[key] += 1
            global_id += 1


if __name__ == "__main__":
    for each in records(Path(sys.argv[1])):
        print(json.dumps(each, default=bytes.hex))
