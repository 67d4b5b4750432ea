"""The description of the package on an index: README.md with links that lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LINKS = """\
[guide](docs/guide.md), [part](docs/guide.md#part), [licence](LICENSE), [out](https://example.org/x.md)
```python
table[0](docs/guide.md)
```
[last](README.md)
"""


def test_without_an_address_links_into_the_repository_are_plain_text(setup: ModuleType) -> None:
    assert setup.description_of(LINKS, None) == (
        "guide, part, licence, [out](https://example.org/x.md)\n"
        "```python\ntable[0](docs/guide.md)\n```\n"
        "last\n"
    )


def test_with_an_address_links_lead_into_the_site(setup: ModuleType) -> None:
    site = "https://docs.example.org"
    assert setup.description_of(LINKS, f"{site}/").splitlines()[0] == (
        f"[guide]({site}/docs/guide.html), [part]({site}/docs/guide.html#part), licence, "
        "[out](https://example.org/x.md)"
    )


def test_the_readme_has_no_relative_link_left(setup: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    prose = re.sub(r"^```.*?^```$", "", setup.description_of(readme, None), flags=re.MULTILINE | re.DOTALL)
    assert [target for target in re.findall(r"\]\(([^)]+)\)", prose) if "://" not in target] == []
    assert "<img" not in prose
    assert len(prose) > 4000


def test_the_metadata_of_the_package_has_that_description(setup: ModuleType, tmp_path: Path) -> None:
    """Asked as pip asks for it, with everything that the build needs from this environment."""
    code = (
        "import sys, setuptools.build_meta as build\n"
        "print(build.prepare_metadata_for_build_wheel(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    read = Parser().parsestr(metadata.read_text())
    assert read["Description-Content-Type"] == "text/markdown"
    readme = (ROOT / "README.md").read_text()
    assert (
        str(read.get_payload()).strip() == setup.description_of(readme, setup.documentation_address()).strip()
    )
