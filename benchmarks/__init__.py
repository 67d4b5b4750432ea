"""Benchmarks that print ratios from one run, each beside its goal."""
