"""Run every benchmark, or those named: ``python -m benchmarks [NAME …]``."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.measure import Figure, print_figures


def names() -> list[str]:
    """Return the names of the benchmarks there are: modules of this package with a ``run``."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in found if name not in {"__main__", "measure"})


def main(wanted: list[str]) -> int:
    """Run the *wanted* benchmarks and return how many figures missed their goal."""
    unknown = set(wanted) - set(names())
    if unknown:
        print(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(names())}")
        return 2
    figures: list[Figure] = []
    for name in wanted or names():
        figures += importlib.import_module(f"benchmarks.{name}").run()
    print_figures(figures)
    missed = [figure.name for figure in figures if figure.missed]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
