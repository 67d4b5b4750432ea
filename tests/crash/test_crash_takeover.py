"""Whatever a power cut leaves of the epoch of a takeover: no (offset, leader epoch) gets two contents."""

from __future__ import annotations

from crash.test_crash_engine import LIMIT, SMALL, edges, note_takeover
from support.crashes import CrashCount, crash_images
from support.disks import RecordingFiles
from support.machines import contents_agree, frames
from support.promises import Promise, Workload, check_promises, open_and_read

from cordwood.disk import MemoryFiles


def test_no_power_cut_gives_an_epoch_of_a_takeover_two_beginnings() -> None:
    """What the log had at any time, and what it has after the cut and one more append, agree.

    Records that were not synced may be replaced by others, as always; here all are synced.
    """
    recording, had = RecordingFiles(MemoryFiles()), list[tuple[int, tuple[tuple[int, int, bytes], ...]]]()

    def note(work: Workload) -> None:
        had.append((len(recording.history), tuple(frames(work.partition))))

    work = Workload(recording, SMALL)
    for takeover in (0, 2, 3, 9):
        if takeover:
            note_takeover(recording, takeover)
            work.kill()
        if takeover == 3:
            work.truncate(2)
        for size in (40, 90, 41):
            work.append(size)
            note(work)
        # A roll and a swap of segments right after the first append under a new epoch.
        work.partition.roll()
    work.close()
    count, checked = CrashCount(), 0
    for image in crash_images(recording, limit_per_prefix=LIMIT, edges=edges, count=count):
        if not image.acknowledged:
            continue
        seen = [found for length, found in had if length <= image.prefix]
        check_promises(image)
        log, _ = open_and_read(image.files, Promise())
        if "t" in log.topics:
            now = frames(log.data_directory.partitions.own("t", 0))
            assert [epoch for _, epoch, _ in now] == sorted(epoch for _, epoch, _ in now)
            contents_agree(now, *seen)
            checked += 1
        log.close()
    print("\n".join(count.report()))
    assert checked >= 300, checked
