"""Build the wheel and the source archive of this checkout, and check their contents."""

import hashlib
import json
import re
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from framework.version import VERSION
from hatch_build import NOTE, long_description

hatchling = pytest.importorskip("hatchling.build", reason="the build backend comes with scripts/setup")

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / hatchling.build_wheel(str(folder))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_has_only_the_package(names: set[str]) -> None:
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"framework", "application_worker"}


def test_wheel_has_each_source_script_and_typing_marker(names: set[str]) -> None:
    sources = [path for path in (ROOT / "framework").rglob("*") if path.suffix in (".py", ".lua", ".typed", ".yml")]
    assert {str(path.relative_to(ROOT)) for path in sources} - names == set()
    assert "framework/py.typed" in names


def test_wheel_has_the_pages_and_locked_browser_files(wheel: Path, names: set[str]) -> None:
    served = [path for path in (ROOT / "framework").rglob("*") if path.parent.name in ("templates", "static")]
    assert {str(path.relative_to(ROOT)) for path in served if path.is_file()} - names == set()
    lock = json.loads((ROOT / "scripts" / "browser.lock").read_text(encoding="utf-8"))
    files = [file for package in lock["packages"] for file in package["files"]]
    with zipfile.ZipFile(wheel) as archive:
        for file in files:
            served = file["target"].startswith("framework/")
            content = archive.read(file["target"]) if served else (ROOT / file["target"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == file["sha256"], file["target"]
    for package in lock["packages"]:
        assert [file for file in package["files"] if file["target"].endswith("LICENSE")]


# --- the metadata ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    folder = tmp_path_factory.mktemp("metadata")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        info = folder / hatchling.prepare_metadata_for_build_wheel(str(folder))
    return message_from_string((info / "METADATA").read_text(encoding="utf-8"))


def test_metadata_names_licence_authors_and_version(metadata: Message, names: set[str]) -> None:
    assert metadata["License-Expression"] == "MIT AND 0BSD"
    assert metadata.get_all("License-File") == ["LICENSE", "framework/dashboard/static/htmx.LICENSE"]
    assert metadata["Author"] == "application-worker contributors"
    assert metadata["Version"] == VERSION
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert metadata["Project-URL"] is None


def test_long_description_has_no_relative_link(metadata: Message) -> None:
    shown = str(metadata.get_payload())
    assert shown.startswith("# application-worker\n")
    outside_of_code = "".join(re.split(r"(?ms)^```.*?^```$", shown))
    assert re.findall(r"\]\((?!https?://)[^)]*\)", outside_of_code) == []
    named = set(re.findall(r"\(`([^`]+)`\)", outside_of_code))
    assert "docs/index.md" in named
    assert [name for name in named if "/" in name and not (ROOT / name).exists()] == []


def test_long_description_keeps_code_and_absolute_links() -> None:
    readme = "# T\n\n[a](docs/a.md#b) [c](https://c) [d](#d)\n![e](e.svg)\n```python\nx[1](2)\n```\n"
    made = "a (`docs/a.md`) [c](https://c) d\ne (`e.svg`)\n```python\nx[1](2)\n```\n"
    assert long_description(readme) == f"# T\n\n{NOTE}{made}"


def test_docs_and_messages_name_only_existing_extras(metadata: Message) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "framework").rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    asked = re.compile(r"extras? `?\[?`?(\w+)`|PATH\[([\w,]+)\]|install_extra\(['\"](\w+)|checkout\[(\w+)\]")
    found = {name for text in texts.values() for groups in asked.findall(text) for name in ",".join(groups).split(",")}
    assert {"sql", "embedded", "cli", "flags"} <= found
    assert found - {""} <= set(metadata.get_all("Provides-Extra", []))


def test_no_page_or_message_installs_an_unpublished_name() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "framework").rglob("*.py")]
    wrong = re.compile(r"install\s+['\"`]?application-worker\b")
    assert [str(path.relative_to(ROOT)) for path in pages if wrong.search(path.read_text(encoding="utf-8"))] == []
