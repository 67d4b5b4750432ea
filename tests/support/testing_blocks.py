"""The blocks of docs/testing.md, and what the frameworks in them need."""

from __future__ import annotations

import re

from support.wheels import ROOT

#: The packages of each block that needs more than requirements.lock has, as they were tried.
FRAMEWORKS = {
    "test_django.py": ("django==5.2.19",),
    "test_fastapi.py": ("fastapi==0.163.0", "httpx2", "aiokafka==0.14.0"),
    "test_faststream.py": ("faststream[confluent]==0.7.8",),
    "shop.py": (),
    "test_faust.py": ("faust-streaming==0.15.3",),
    "test_quixstreams.py": ("quixstreams==3.28.1",),
}
#: pytest without the settings of any directory above.
HERMETIC = ("-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-q", "-p", "no:cacheprovider")


def blocks() -> dict[str, str]:
    """Return the text of each block by the name of its file, which is its first line."""
    page = (ROOT / "docs" / "testing.md").read_text()
    found = re.findall(r"^```py\n# (\S+\.py)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(found) == page.count("```py\n")
    assert len(dict(found)) == len(found)
    return dict(found)
