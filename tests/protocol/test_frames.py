"""Bytes in, whole requests out: however they are cut on the way, and however much their lengths claim."""

from __future__ import annotations

import mmap
import random
import struct
import weakref
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.errors import MalformedMessage
from cordwood.protocol.frames import LARGE, SMALL, Inbox
from cordwood.server.connections.memory import map_buffer

SIZE_MAX = 4 << 20
SHARED = 2 * SMALL


def new_inbox(shared: bytearray | None = None, size_max: int = SIZE_MAX) -> Inbox:
    return Inbox(bytearray(SHARED) if shared is None else shared, size_max)


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def put(inbox: Inbox, data: bytes) -> list[bytes]:
    """Give *data* to the inbox as a socket would, as much at once as there is space for."""
    frames: list[bytes] = []
    while data:
        space = inbox.space()
        assert space, "a socket that is given no space reads the end of the connection"
        count = min(len(space), len(data))
        space[:count] = data[:count]
        # As a transport does: what grows must not be in use.
        del space
        frames += map(bytes, inbox.take(count))
        data = data[count:]
    return frames


def put_pieces(inbox: Inbox, pieces: Iterable[bytes]) -> list[bytes]:
    return [frame for piece in pieces for frame in put(inbox, piece)]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# --- Frames, however they are cut ------------------------------------------------------------------

SMALL_ONES = [b"", b"a", b"", noise(3), noise(40), b"\0" * 4, b"\xff" * 9, b""]


def test_a_whole_frame_comes_out_as_it_went_in_and_leaves_nothing() -> None:
    inbox = new_inbox()
    assert put(inbox, framed(b"request")) == [b"request"]
    assert (inbox.pending, inbox.held) == (0, 0)


def test_many_frames_in_one_read_come_out_together_in_order() -> None:
    inbox = new_inbox()
    assert put(inbox, framed(*SMALL_ONES * 50)) == SMALL_ONES * 50
    assert inbox.pending == 0


def test_a_frame_of_no_bytes_is_a_frame() -> None:
    """It is no request, but that is for whoever decodes it to say."""
    assert put(new_inbox(), framed(b"")) == [b""]


def test_byte_by_byte_no_frame_comes_early_and_none_is_lost() -> None:
    inbox = new_inbox()
    for frame in SMALL_ONES:
        data = framed(frame)
        for received, byte in enumerate(data[:-1], start=1):
            assert put(inbox, bytes([byte])) == []
            assert inbox.pending == received
        assert put(inbox, data[-1:]) == [frame]
        assert inbox.pending == 0


def test_split_in_two_at_every_byte() -> None:
    data = framed(*SMALL_ONES)
    for at in range(len(data) + 1):
        assert put_pieces(new_inbox(), (data[:at], data[at:])) == SMALL_ONES, at


@pytest.mark.parametrize(
    "size", [SMALL - 1, SMALL, SMALL + 1, SHARED - 5, SHARED - 4, SHARED - 3, SHARED, 5 * SHARED, SIZE_MAX]
)
@pytest.mark.parametrize("behind", [0, 10])
def test_frames_around_the_sizes_of_the_buffers_between_small_ones(size: int, behind: int) -> None:
    """*behind*: whether the large frame begins at the start of the buffer or after a small one."""
    before, large, after = noise(behind), noise(size), noise(7)
    data = framed(before, large, after)
    for pieces in ([data], [data[i : i + 1448] for i in range(0, len(data), 1448)]):
        inbox = new_inbox()
        assert put_pieces(inbox, pieces) == [before, large, after]
        assert (inbox.pending, inbox.held) == (0, 0)


def test_a_large_frame_is_received_where_it_stays() -> None:
    """Megabytes are not copied through the shared buffer: the space given is in the frame itself."""
    shared = bytearray(SHARED)
    inbox = new_inbox(shared)
    large = noise(4 * SHARED)
    put(inbox, framed(large)[: 2 * SMALL])
    shared[:] = bytes(SHARED)
    assert put(inbox, framed(large)[2 * SMALL :]) == [large]
    assert shared == bytes(SHARED)


def test_each_frame_is_writable_and_its_own() -> None:
    """The engine sets offsets in place, in a buffer that nobody else has or resizes."""
    inbox = new_inbox()
    space = inbox.space()
    data = framed(b"one", b"two")
    space[: len(data)] = data
    first, second = inbox.take(len(data))
    memoryview(first)[:] = b"ONE"
    put(inbox, framed(b"three"))
    assert (bytes(first), bytes(second)) == (b"ONE", b"two")


def test_two_inboxes_share_a_buffer_in_turn() -> None:
    """Whatever one leaves half received, the other may write over the shared bytes."""
    shared = bytearray(SHARED)
    one, two = new_inbox(shared), new_inbox(shared)
    ours, theirs = [noise(50), noise(SMALL + 100), noise(9)], [noise(60), noise(3), noise(3 * SMALL)]
    got: tuple[list[bytes], list[bytes]] = ([], [])
    streams = [framed(*ours), framed(*theirs)]
    while any(streams):
        for number, inbox in enumerate((one, two)):
            piece, streams[number] = streams[number][:37], streams[number][37:]
            got[number].extend(put(inbox, piece))
            # What is in the shared buffer now belongs to nobody.
            shared[:] = b"\xee" * SHARED
    assert got == (ours, theirs)


# --- What a length may claim -----------------------------------------------------------------------


@pytest.mark.parametrize("length", [-1, -2, -(2**31), SIZE_MAX + 1, 2**31 - 1])
def test_a_length_below_0_or_above_the_limit_is_refused_before_anything_is_allocated(length: int) -> None:
    inbox = new_inbox()
    with pytest.raises(MalformedMessage, match=rf"from 0 to {SIZE_MAX}: found {length}\b"):
        put(inbox, struct.pack(">i", length))
    assert inbox.held <= 4


def test_a_bad_length_is_refused_once_its_fourth_byte_is_there() -> None:
    inbox = new_inbox()
    for byte in b"\xff\xff\xff":
        assert put(inbox, bytes([byte])) == []
    with pytest.raises(MalformedMessage):
        put(inbox, b"\xff")


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    inbox = new_inbox(size_max=10)
    assert put(inbox, framed(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(MalformedMessage):
        put(inbox, framed(b"x" * 11))


def check_held(inbox: Inbox, received: int, before: int) -> None:
    """A frame takes at most twice what came of it, or a small buffer, or what such a peer once sent."""
    assert inbox.held <= max(2 * received, SMALL, before), (inbox.held, received, before)


@pytest.mark.parametrize("step", [1000, 1448, SMALL, 3 * SMALL])
def test_memory_follows_what_came_and_not_what_was_claimed(step: int) -> None:
    inbox = new_inbox()
    data = framed(noise(SIZE_MAX))
    for at in range(0, len(data), step):
        put(inbox, data[at : at + step])
        check_held(inbox, min(at + step, len(data)), 0)


def test_a_few_bytes_that_claim_the_largest_frame_hold_one_small_buffer() -> None:
    inbox = new_inbox()
    put(inbox, struct.pack(">i", SIZE_MAX) + b"x")
    assert inbox.held <= SMALL
    assert inbox.pending == 5


def test_a_peer_that_sent_as_much_before_is_given_it_at_once_and_no_more() -> None:
    """So a producer of large batches is spared the copies of a buffer that grows, from its second one on."""
    inbox = new_inbox()
    put(inbox, framed(noise(SIZE_MAX // 2)))
    assert inbox.held == 0
    put(inbox, struct.pack(">i", SIZE_MAX) + b"x")
    assert inbox.held == SIZE_MAX // 2
    assert len(inbox.space()) == SIZE_MAX // 2 - 1


@pytest.mark.parametrize("step", [1448, 3 * SMALL, 1 << 20])
@pytest.mark.parametrize("kind", ["growing", "not growing", "none"])
def test_large_frames_come_out_as_they_went_in_whatever_their_buffers_are(kind: str, step: int) -> None:
    made: list[mmap.mmap] = []

    def make(size: int) -> mmap.mmap | None:
        if kind == "none":
            return None
        made.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if kind == "not growing":
            # A view that somebody holds keeps it from growing.
            held.append(memoryview(made[-1]))
        return made[-1]

    held: list[memoryview] = []
    inbox = Inbox(bytearray(SHARED), 2 * LARGE, make)
    frames = [noise(LARGE + 1), noise(10), noise(LARGE + LARGE // 2), noise(LARGE)]
    data = framed(*frames)
    assert put_pieces(inbox, (data[at : at + step] for at in range(0, len(data), step))) == frames
    assert len(made) == (0 if kind == "none" else 2)
    assert (inbox.pending, inbox.held) == (0, 0)


def test_of_a_large_frame_only_what_came_is_held_and_nothing_once_it_is_given_up() -> None:
    inbox = Inbox(bytearray(SHARED), 2 * LARGE, map_buffer)
    data = framed(noise(2 * LARGE))
    for at in range(0, LARGE, SMALL):
        put(inbox, data[at : at + SMALL])
        assert inbox.held <= at + SMALL
    frame = weakref.ref(inbox._frame)
    inbox.clear()
    assert (inbox.pending, inbox.held, inbox.missing) == (0, 0, 0)
    assert frame() is None


def test_where_memory_is_short_a_frame_grows_by_what_is_asked_for() -> None:
    inbox = new_inbox()
    put(inbox, framed(noise(SIZE_MAX))[: 4 + 2 * SMALL])
    before = inbox.held
    while len(inbox.space(100)) < 100:
        inbox.take(len(inbox.space(100)))
    assert inbox.held <= before + 200


# --- Against a model -------------------------------------------------------------------------------


def frames_in(data: bytes) -> tuple[list[bytes], int]:
    """Return the frames that *data* holds whole, and how many bytes are left: all there is to know."""
    frames, position = [], 0
    while position + 4 <= len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            break
        frames.append(data[position + 4 : end])
        position = end
    return frames, len(data) - position


frame_sizes = st.integers(0, 12) | st.sampled_from(
    [SMALL - 5, SMALL - 4, SMALL, SMALL + 1, SHARED - 4, SHARED, 3 * SMALL]
)
# Beside sizes of reads like a network's, 0: as much as there is space for.
read_sizes = st.sampled_from([0, 0, 1, 2, 3, 4, 5, 100, 1448, SMALL, SMALL + 3, SHARED])


@given(st.lists(frame_sizes, max_size=8), st.lists(read_sizes, min_size=1, max_size=30), st.booleans())
@example([SMALL + 1, 0, 3 * SMALL], [0], True)
def test_any_frames_in_any_reads_come_out_as_the_model_says(
    sizes: Sequence[int], reads: Sequence[int], cut: bool
) -> None:
    frames = [noise(size) for size in sizes]
    data = framed(*frames)
    if cut:
        data = data[: len(data) * 2 // 3]
    inbox = new_inbox()
    position, got, largest, turn = 0, list[bytes](), 0, 0
    while position < len(data):
        space = inbox.space()
        # After the reads of the example the rest comes as fast as it can, or a test would take minutes.
        limit = reads[turn] if turn < len(reads) else 0
        count = min(len(space), len(data) - position, limit or SHARED)
        space[:count] = data[position : position + count]
        new = [bytes(frame) for frame in inbox.take(count)]
        position, turn = position + count, turn + 1
        got += new
        expected, left = frames_in(data[:position])
        assert got == expected
        assert inbox.pending == left
        largest = max([largest, *map(len, new)])
        check_held(inbox, left, largest)
