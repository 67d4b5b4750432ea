"""Print which kernels run: ``python -m cordwood.kernels``."""

from cordwood.kernels import COMPILED, NOTICE

print("cordwood: compiled kernels" if COMPILED else f"NOTICE: {NOTICE}")  # noqa: T201
