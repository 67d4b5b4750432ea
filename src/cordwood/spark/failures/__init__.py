"""Errors from Spark as one sentence for the user of a job."""

from cordwood.spark.failures.sentences import in_one_sentence
from cordwood.spark.failures.translating import as_one_sentence, explained

__all__ = [
    "as_one_sentence",
    "explained",
    "in_one_sentence",
]
