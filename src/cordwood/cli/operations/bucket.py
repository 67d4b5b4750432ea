"""``cordwood bucket``: the log in a bucket, as anyone who may read it finds it."""

from __future__ import annotations

import click

from cordwood.bucket import BucketView, view_bucket
from cordwood.cli.backends import json_option
from cordwood.cli.output import print_json, print_table
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.host import Host, SystemClock
from cordwood.wording import bytes_text


@click.group(cls=SuggestingGroup)
def bucket() -> None:
    """Look at a log in object storage.

    Example: cordwood bucket status s3://logs/orders
    """


@bucket.command()
@click.argument("url", metavar="URL")
@json_option
def status(url: str, as_json: bool) -> None:
    """Print who owns the log at URL, how far it is, and what it takes.

    Example: cordwood bucket status s3://logs/orders
    """
    view = view_bucket(url, Host())
    found = _found(view, SystemClock().now_ms())
    if as_json:
        print_json(found)
        return
    print_table(
        ("fact", "value"), [(name.replace("_", " "), _shown(name, value)) for name, value in found.items()]
    )


def _found(view: BucketView, now_ms: int) -> dict[str, object]:
    manifest, sizes = view.manifest, [file.size for _, file in view.tree.files()]
    owner = manifest.owners[-1] if manifest.owners else None
    return {
        "broker": view.identity.broker_id,
        "created": view.identity.created_at,
        "owner_epoch": None if owner is None else owner.epoch,
        "newest_piece": view.reading.next_seq - 1,
        "pieces_since_pages": view.reading.next_seq - manifest.floor,
        "newest_change_ms_ago": max(now_ms - view.tree.at_ms, 0) if view.tree.at_ms else None,
        "lease_ms": manifest.lease_ms,
        "pages": len(manifest.pages),
        "objects": len(view.tree.objects),
        "object_bytes": sum(each.size for each in view.tree.objects.values()),
        "files": len(sizes),
        "file_bytes": sum(sizes),
        "to_be_deleted": len(manifest.departed),
    }


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and name.endswith("bytes"):
        return bytes_text(value)
    return str(value)
