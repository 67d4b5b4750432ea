"""Print which kernels run: ``python -m cordwood.kernels``."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cordwood.kernels import COMPILED, NOTICE

print("cordwood: compiled kernels" if COMPILED else f"NOTICE: {NOTICE}")  # noqa: T201
