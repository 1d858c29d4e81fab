"""Test that each page exists that code, configuration, scripts or a page at the root name by its path."""

import re

from tests.harness import ROOT

NAMED = re.compile(r"\bdocs/(?:guides|internals|learn|operate|reference)/[a-z_/]+\.md\b|\bdocs/[a-z]+\.md\b")
FOLDERS = ("framework", "workers", "demo", "scripts", "config", "tests/proofs", "tests/chaos", "tests/bench")
FILES = ("pyproject.toml", "hatch_build.py", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def test_pages_that_code_names_exist():
    within = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    paths = [ROOT / name for name in FILES] + within
    texts = [(path, path.read_text(errors="replace")) for path in paths if path.is_file()]
    named = {(str(path.relative_to(ROOT)), page) for path, text in texts for page in NAMED.findall(text)}
    assert len(named) > 30
    assert sorted(one for one in named if not (ROOT / one[1]).exists()) == []
