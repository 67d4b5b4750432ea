"""Ways in which a frame can be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from cordwood.protocol.apis import ApiKey

KEYS = list(ApiKey)

#: What a huge length or count looks like, as 32 bits and as a varint.
HUGE = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f")
#: What else it can lie with: 16 bits, a negative number, a varint without end.
LIES = (*HUGE, b"\x7f\xff", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")


def with_each(frame: bytes, lies: tuple[bytes, ...]) -> list[bytes]:
    """Return *frame* with each of *lies* in each place."""
    return [
        frame[:position] + lie + frame[position + len(lie) :]
        for lie in lies
        for position in range(len(frame) - len(lie) + 1)
    ]


def flip(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def replace(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    frame[rng.randrange(len(frame))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def lie(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position, chosen = rng.randrange(len(frame)), rng.choice(LIES)
    frame[position : position + len(chosen)] = chosen


def cut(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = rng.randrange(len(frame))
    del frame[position : position + rng.randrange(1, 9)]


def repeat(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = rng.randrange(len(frame))
    frame[position:position] = frame[position : position + rng.randrange(1, 33)]


def insert(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = rng.randrange(len(frame))
    frame[position:position] = rng.randbytes(rng.randrange(1, 9))


def splice(rng: random.Random, frame: bytearray, others: list[bytes]) -> None:
    other = rng.choice(others)
    frame[rng.randrange(len(frame)) :] = other[rng.randrange(len(other)) :]


def another_api(rng: random.Random, frame: bytearray, _: list[bytes]) -> None:
    frame[:4] = bytes((0, rng.choice(KEYS), 0, rng.randrange(19)))


MUTATIONS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    flip,
    replace,
    lie,
    cut,
    repeat,
    insert,
    splice,
    another_api,
)


def mutated_frames(rng: random.Random, frames: list[bytes], count: int) -> Iterator[bytearray]:
    """Return frames with one to four mutations each, each of *frames* in turn."""
    for index in range(count):
        frame = bytearray(frames[index % len(frames)])
        for mutation in rng.choices(MUTATIONS, k=rng.choice((1, 1, 1, 2, 4))):
            if frame:
                mutation(rng, frame, frames)
        yield frame
