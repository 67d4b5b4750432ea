"""Commands that take the name of a topic, with a name that is mistyped: ``ordres`` for ``orders``."""

from __future__ import annotations

#: The arguments with which each command that reads a topic is given a mistyped one.
READING = {
    "audit tail": "-t ordres",
    "checkpoint create": "-t ordres",
    "consume": "-e -t ordres",
    "export": "exported --to kafka -t ordres",
    "group reset": "billing --to 0 -t ordres",
    "prove": "0 -t ordres",
    "reindex": "-t ordres",
    "segment list": "ordres",
    "topic alter": "ordres --config retention.ms=1",
    "topic delete": "ordres",
    "topic describe": "ordres",
    "topic roll": "ordres",
    "topic truncate": "ordres --partition 0 --end-offset 0",
    "verify": "-t ordres",
}
READING_WITH_SPARK = {
    "pipeline compact": "-t ordres",
    "pipeline convert": "--to copies -t ordres",
    "pipeline export": "--to parquet -t ordres",
    "pipeline materialize": "--to latest --latest -t ordres",
    "pipeline reindex": "-t ordres",
    "pipeline stats": "-t ordres",
    "pipeline verify": "-t ordres",
}
#: Commands for which a name that no topic has is no mistake, and why.
NEW_OR_ELSEWHERE = {
    "acl add": "the topic may come later",
    "acl list": "the topic may come later",
    "acl remove": "the topic may come later",
    "checkpoint show": "shows what of it is in a list, which may be nothing",
    "import": "the topic is created",
    "mirror": "a pattern, of topics elsewhere",
    "pipeline ingest": "the topic is created",
    "produce": "the topic is created",
    "topic create": "the topic is created",
    "verify-proof": "compares two names",
}
