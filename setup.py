"""Build the compiled kernels where a C compiler is there, and the description for a package index.

Everything else about the package is declared in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent
KERNELS: dict[str, list[str]] = {
    "_memory": [],
    "_decode": [],
    "_encode": [],
    "_compact": [],
    "_hash": ["_sha256.h"],
}


def kernels() -> list[Extension]:
    """Return the kernels. Without a compiler the build goes on without them; ``cordwood doctor`` says so."""
    extensions: list[Extension] = cythonize(
        [
            Extension(
                f"cordwood.kernels.{name}",
                [f"src/cordwood/kernels/{name}.pyx"],
                depends=[f"src/cordwood/kernels/{header}" for header in headers],
                extra_compile_args=["-O3"],
            )
            for name, headers in KERNELS.items()
        ],
        language_level=3,
    )
    for extension in extensions:
        extension.optional = True
    return extensions


def description_of(readme: str, documentation: str | None) -> str:
    """Return *readme* for a package index, where a link to a file of the repository leads nowhere.

    Links to pages become links into the site at the address *documentation*; without an address, and for
    other files, their text is left. Pictures are left out. Blocks of code are not changed.
    """

    def linked(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, hash_mark, place = target.partition("#")
        if "://" in target:
            return match[0]
        if documentation is None or not path.endswith(".md"):
            return text
        return f"[{text}]({documentation.rstrip('/')}/{path.removesuffix('.md')}.html{hash_mark}{place})"

    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    # Every second part is a block of code.
    picture = re.compile(r"<img [^>]*>\n*|!\[[^\]]*\]\((?!https?://)[^)]*\)\n*")
    parts[::2] = [picture.sub("", part) for part in parts[::2]]
    parts[::2] = [re.sub(r"\[([^\]\n]+)\]\(([^()\s]+)\)", linked, part) for part in parts[::2]]
    return "".join(parts)


def documentation_address() -> str | None:
    """Return the address of the documentation in pyproject.toml, None if it has none."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address: str | None = project.get("urls", {}).get("Documentation")
    return address


if __name__ == "__main__":
    setup(
        ext_modules=kernels(),
        long_description=description_of(
            (HERE / "README.md").read_text(encoding="utf-8"), documentation_address()
        ),
        long_description_content_type="text/markdown",
    )
