"""Test the site: `scripts/docs` builds it without a warning, its links have targets, and it loads no remote file."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r'<a [^>]*?href="([^"]+)"')
ANCHOR = re.compile(r'\bid="([^"]+)"')
LOADED = re.compile(r'<(?:script|img|iframe)[^>]*? src="([^"]+)"|<link [^>]*?href="([^"]+)"')
PARTS = ("learn", "guides", "operate", "reference", "internals")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    folder = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, str(ROOT / "scripts" / "docs"), "--quiet", "--output", str(folder)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    return {path: path.read_text() for path in folder.rglob("*.html")}


@pytest.mark.campaign  # takes half a minute of processor time
@pytest.mark.timeout(1_200)
def test_site_is_complete_and_loads_no_remote_file(site: dict[Path, str]) -> None:
    root = min(site, key=lambda path: len(path.parts)).parent
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(root) for path in site}
    assert all(root / part / "index.html" in site for part in PARTS)
    loaded = {one or other for text in site.values() for one, other in LOADED.findall(text)}
    assert [address for address in loaded if "//" in address] == []
    assert broken_links(site) == []


def broken_links(site: dict[Path, str]) -> list[str]:
    anchors = {path: set(ANCHOR.findall(text)) for path, text in site.items()}
    broken = []
    for page, text in site.items():
        for link in set(LINK.findall(text)):
            address, _, anchor = unquote(unescape(link)).partition("#")
            target = (page.parent / address).resolve() if address else page
            if "://" in link or link.startswith("mailto:"):
                continue
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append(f"{page.name}: {link}")
    return broken
