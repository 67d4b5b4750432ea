"""The documentation site: every page is in it, it needs no network, and a broken link fails its build."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def build(source: Path, output: Path, builder: str = "html") -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    places = ["-c", str(source / "docs"), "-d", str(output / "cache"), str(source), str(output / "site")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, *places],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    built = build(ROOT, output)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return output / "site"


def test_every_page_is_in_the_site_and_in_the_list_for_machines(site: Path) -> None:
    listed = (site / "llms.txt").read_text()
    for page in PAGES:
        built = page.relative_to(ROOT).with_suffix(".html")
        assert (site / built).is_file()
        assert page.parent == ROOT or f"]({built})" in listed
    print(f"{len(PAGES)} pages")
    assert (site / "searchindex.js").is_file()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Links may lead out; scripts, styles, fonts and pictures may not."""
    loaded = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']((?:https?:)?//[^"']+)""")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert {page.name: found for page in pages if (found := loaded.findall(page.read_text()))} == {}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    reference = (site / "docs" / "api.html").read_text()
    modules = ("cordwood", "cordwood.aio", "cordwood.errors", "cordwood.spark", "cordwood.testing")
    names = [f"{room}.{name}" for room in modules for name in importlib.import_module(room).__all__]
    assert len(names) > 120
    missing = {name for name in names if f'id="{name}"' not in reference}
    # Modules, whose names are looked for themselves; a type alias; what is no callable; a class of Spark.
    others = {"cordwood.Header", "cordwood.__version__", "cordwood.spark.SparkSession"}
    assert missing == {name for name in modules if name != "cordwood"} | others


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "conf.py", source / "docs")
    (source / "docs" / "index.md").write_text("# Cordwood\n\nThis [leads nowhere](nowhere.md).\n")
    built = build(source, tmp_path, "dummy")
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
