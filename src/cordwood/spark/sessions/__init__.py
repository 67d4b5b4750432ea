"""Spark sessions: finding Java, registering the source, declarative pipelines."""

from cordwood.spark.sessions.discovery import broken_sources
from cordwood.spark.sessions.java import find_java
from cordwood.spark.sessions.pipelines import PipelineOptions, flow_state, load_spec, run_pipeline
from cordwood.spark.sessions.ready import ready_session

__all__ = [
    "PipelineOptions",
    "broken_sources",
    "find_java",
    "flow_state",
    "load_spec",
    "ready_session",
    "run_pipeline",
]
