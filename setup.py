"""Build the compiled kernels where a C compiler is there; otherwise install without them.

Everything else about the package is declared in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

kernels = cythonize(
    [
        Extension(
            f"cordwood.kernels.{name}",
            [f"src/cordwood/kernels/{name}.pyx"],
            depends=[f"src/cordwood/kernels/{header}" for header in headers],
            extra_compile_args=["-O3"],
        )
        for name, headers in {
            "_memory": [],
            "_decode": [],
            "_encode": [],
            "_compact": [],
            "_hash": ["_sha256.h"],
        }.items()
    ],
    language_level=3,
)
for extension in kernels:
    # Without a compiler the build goes on; `cordwood.kernels` then warns and uses its reference.
    extension.optional = True

setup(ext_modules=kernels)
