"""The report of ``stats`` as a picture: for each topic its records over time and by partition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError
from cordwood.spark.jobs.stats.job import StatsReport, TopicStats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

#: The number of topics in a picture; those with most records are drawn.
TOPICS_MAX = 12
_WIDTH, _HEIGHT = 11.0, 2.6
_LABELS_MAX = 8


def check_can_draw() -> None:
    """Check that drawing is possible, before the work of the job.

    Raises:
        CordwoodError: If matplotlib is not installed; says how to get it.
    """
    try:
        import matplotlib.figure  # noqa: F401 - the question is whether it can be
    except ImportError as error:
        raise CordwoodError("a picture needs matplotlib: pip install matplotlib") from error


def draw(report: StatsReport, path: str) -> None:
    """Draw *report* into a PNG file at *path*, the topics with most records first.

    Raises:
        CordwoodError: If matplotlib is not installed.
        OSError: If the file cannot be written.
    """
    check_can_draw()
    from matplotlib.figure import Figure

    topics = sorted(report.topics, key=lambda each: -each.records)[:TOPICS_MAX]
    rows = max(len(topics), 1)
    figure = Figure(figsize=(_WIDTH, _HEIGHT * rows), layout="constrained")
    axes = figure.subplots(rows, 2, width_ratios=(3, 1), squeeze=False)
    for (times, partitions), topic in zip(axes, topics, strict=False):
        _draw_times(times, topic)
        _draw_partitions(partitions, topic)
    if not topics:
        axes[0][0].set_title("no topics")
    figure.savefig(path, format="png", dpi=120)


def _draw_times(axes: Axes, topic: TopicStats) -> None:
    axes.set_title(f"{topic.topic}: {topic.records:,} records by time (UTC)", loc="left", fontsize="medium")
    if topic.bucket_ms is None:
        axes.set_axis_off()
        return
    axes.bar(range(len(topic.histogram)), [each.records for each in topic.histogram], 0.9, align="edge")
    # Text instead of dates: a timestamp may be outside the range of dates.
    places = range(0, len(topic.histogram), -(-len(topic.histogram) // _LABELS_MAX))
    labels = [time_text(topic.histogram[i].start_ms, topic.bucket_ms).replace(" ", "\n") for i in places]
    axes.set_xticks(list(places), labels)
    axes.margins(x=0.01)
    _in_whole_numbers(axes.yaxis)
    axes.tick_params(labelsize="x-small")


def _draw_partitions(axes: Axes, topic: TopicStats) -> None:
    if not topic.records:
        axes.set_axis_off()
        return
    axes.set_title("by partition", loc="left", fontsize="medium")
    axes.bar([each.partition for each in topic.partitions], [each.records for each in topic.partitions])
    _in_whole_numbers(axes.xaxis)
    _in_whole_numbers(axes.yaxis)
    axes.tick_params(labelsize="x-small")


def _in_whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True))


def time_text(milliseconds: int, exact_to_ms: int = 1) -> str:
    """Return a time in UTC with the precision of *exact_to_ms*."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    if exact_to_ms % 86_400_000 == 0:
        return f"{moment:%Y-%m-%d}"
    if exact_to_ms % 60_000 == 0:
        return f"{moment:%Y-%m-%d %H:%M}"
    if exact_to_ms % 1000 == 0:
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}"
