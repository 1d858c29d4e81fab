"""What others install: built here, from this checkout, and looked into."""

import zipfile
from pathlib import Path

import pytest

hatchling = pytest.importorskip("hatchling.build", reason="the build backend comes with scripts/setup")

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = folder / hatchling.build_wheel(str(folder))
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_holds_the_package_and_nothing_else(names: set[str]) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"framework", "application_worker"}


def test_holds_every_source_script_and_the_typing_marker(names: set[str]) -> None:
    sources = [path for path in (ROOT / "framework").rglob("*") if path.suffix in (".py", ".lua", ".typed", ".yml")]
    assert {str(path.relative_to(ROOT)) for path in sources} - names == set()
    assert "framework/py.typed" in names
