"""What the checker finds: anomalies by name, and counts that are no anomalies."""

from __future__ import annotations

from collections import Counter, defaultdict

#: Names that Jepsen's Kafka workload has.
JEPSEN = {
    "lost-write": "an acknowledged record is not where a reader looked, and nobody sees it any more",
    "duplicate": "one send is at two offsets, though its client is idempotent or transactional",
    "inconsistent-offsets": "one offset has two contents",
    "G1a": "a reader saw a refused send, or a read_committed reader one of an aborted transaction",
    "precommitted-read": "a read_committed reader saw a record before its transaction was asked to commit",
    "int-poll-skip": "one poll skipped a record between two others",
    "poll-skip": "a reader skipped a record between two polls",
    "int-nonmonotonic-poll": "one poll went back",
    "nonmonotonic-poll": "a reader went back between two polls",
    "int-nonmonotonic-send": "two sends of one transaction are stored in the other order",
    "nonmonotonic-send": "two sends of one client are stored in the other order",
}
#: Names of our own.
OURS = {
    "reordered": "a send is stored before a record that was known before the send began",
    "half-visible": "a part of a transaction counts and another part does not",
    "two-outcomes": "one transaction was answered both committed and aborted",
    "resurrected": "a record is there again that was deleted, or that a whole scan did not have",
    "never-sent": "a record is there that nobody sent, or not to this partition, or not yet",
    "gap": "an offset has no record in a topic in which each offset must have one",
    "nonmonotonic-watermark": "the end of a partition went back, or is below an acknowledged record",
    "group-offset-back": "a group has an older offset than one that it was known to have",
    "aborted-offset": "a group has an offset of a transaction that was aborted or never asked to commit",
    "never-committed": "a group has an offset that nobody committed",
    "processed-twice": "two visible records were made from one",
    "processed-never": "a group is past a record from which no visible record was made",
    "fenced-write": "a producer whose transactional id another took over was answered with success",
    "answered-twice": "an operation has two outcomes",
    "problem": "a client noted something that must not happen",
}
NAMES = {**JEPSEN, **OURS}
_SHOWN = 5


class Verdict:
    """All that was found in a history.

    ``counts`` has ``unseen`` (acknowledged records that no reader came by) and ``int-send-skip`` (records of
    others between two of a transaction), which Jepsen reports as well and which are allowed.
    """

    def __init__(self) -> None:
        self.anomalies: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._examples: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, name: str, text: str) -> None:
        """Report an anomaly."""
        assert name in NAMES, name
        self.anomalies[name] += 1
        if len(self._examples[name]) < _SHOWN:
            self._examples[name].append(text)

    @property
    def names(self) -> set[str]:
        """The names of what is wrong; empty if nothing is."""
        return set(self.anomalies)

    def problems(self) -> list[str]:
        """Return a sentence for each anomaly, a few of each kind."""
        return [
            f"{name} ({self.anomalies[name]}): {text}"
            for name, texts in self._examples.items()
            for text in texts
        ]

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return "\n".join([counted, *self.problems()])
