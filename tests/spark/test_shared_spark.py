"""The Spark that tests share: a test that breaks it costs itself alone."""

from __future__ import annotations

from pathlib import Path

from support.nested import run_tests


def test_a_query_that_hangs_fails_its_test_alone_and_the_next_one_has_another_spark(tmp_path: Path) -> None:
    """The connection to Java is broken off within a request, and Java goes on with what it was asked."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["spark.conftest"]\n')
    said, counts = run_tests(
        tmp_path,
        """
        import time

        import pytest
        from pyspark import SparkContext
        from support import shared_spark

        seen = []

        def numbers(spark, sleep):
            return spark.sparkContext.parallelize([1, 2], 1).map(lambda x: time.sleep(sleep) or x).collect()

        def test_usable(spark):
            seen.append(spark)
            assert all(shared_spark.is_usable(spark) for _ in range(200))

        @pytest.mark.timeout(2)
        def test_hangs(spark):
            assert spark is seen[0]
            numbers(spark, sleep=10_000)

        def test_next(spark):
            assert spark is not seen[0]
            assert shared_spark.is_usable(spark)
            assert numbers(spark, sleep=0) == [1, 2]
            # And one whose Java has ended is found out before the next test.
            SparkContext._gateway.proc.kill()
            SparkContext._gateway.proc.wait()
            assert not shared_spark.is_usable(spark)
        """,
        "-p",
        "no:xdist",
        "--timeout=200",
    )
    assert counts == {"failed": 1, "passed": 2, "status": 1}, said
    assert "Failed: the call passed its limit: 2 s on a machine" in said
    left = said.partition("what was left behind")[2]
    assert "process " not in left
    assert "thread " not in left
