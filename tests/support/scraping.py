"""Asking a server for its metrics, and reading the text as strictly as its specification is written."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from support.patience import SECONDS_MAX

_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = frozenset[tuple[str, str]]


@dataclass
class Scrape:
    """What was exposed: kind and help of each metric, and each sample."""

    kinds: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """Return one number."""
        return self.samples[name, frozenset(labels.items())]

    def each(self, name: str) -> dict[Labels, float]:
        """Return the numbers of a metric by their labels."""
        return {labels: value for (found, labels), value in self.samples.items() if found == name}

    @property
    def names(self) -> set[str]:
        """The names of all samples, those of buckets, sums and counts too."""
        return {name for name, _ in self.samples}


def parse(text: str) -> Scrape:
    """Read *text*; whatever is not in the format fails."""
    found = Scrape()
    family = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, family, sentence = line.split(" ", 3)
            assert family not in found.helps, f"{family} comes twice"
            found.helps[family] = sentence
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            assert name == family
            found.kinds[name] = kind
        else:
            name, labels, value = _sample(line)
            suffixes = ("_bucket", "_sum", "_count") if found.kinds[family] == "histogram" else ("",)
            assert name in {family + suffix for suffix in suffixes}, f"{line} among {family}"
            assert (name, labels) not in found.samples, f"{line} comes twice"
            found.samples[name, labels] = value
    return found


def _sample(line: str) -> tuple[str, Labels, float]:
    match = _SAMPLE.fullmatch(line)
    assert match, line
    labels, rest = {}, match[2] or ""
    while rest:
        label = _LABEL.match(rest)
        assert label, line
        assert label[1] not in labels, line
        labels[label[1]] = re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], label[2])
        rest = rest[label.end() :]
    return match[1], frozenset(labels.items()), float(match[3])


def get(url: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and the text of *url*."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(url: str | None) -> Scrape:
    """Return what a server exposes now."""
    assert url is not None
    status, text = get(url)
    assert status == 200, text
    return parse(text)


def say(url: str | None, *pieces: bytes) -> bytes:
    """Send *pieces* to the server of *url*, each for itself, and return all it answers until it hangs up."""
    assert url is not None
    host, port = url.split("/")[2].rsplit(":", 1)
    received = b""
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                made.sendall(piece)
            while data := made.recv(1 << 16):
                received += data
        except ConnectionError:
            pass
    return received
