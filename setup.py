"""Build the compiled kernels where a C compiler is there; otherwise install without them.

Everything else about the package is declared in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

kernels = [
    Extension(
        f"cordwood.kernels.{name}",
        [f"src/cordwood/kernels/{name}.pyx"],
        extra_compile_args=["-O3"],
        # Without a compiler the build goes on; `cordwood.kernels` then warns and uses its reference.
        optional=True,
    )
    for name in ("_memory", "_decode", "_encode")
]

setup(ext_modules=cythonize(kernels, language_level=3))
