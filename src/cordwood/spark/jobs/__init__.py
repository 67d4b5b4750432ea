"""The jobs of the data pipeline: each a function of a session and its options that returns a report.

Spark decides and stages, the engine's own code writes bytes, the owner of a directory publishes. Only the
DataFrame API is used, so jobs run through Spark Connect and on any cluster that has Cordwood installed.
"""
