"""Test the registry of workers by name, and the loading of modules."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ConfigurationError, DeclarationError


def make(name: str, module: str = "workers.sample", **body: Any) -> Any:
    body = {"feature_category": "x", "perform": lambda self: None, "__module__": module, **body}
    return type(name, (ApplicationWorker,), body)


def test_registry_finds_workers_by_name_and_alias():
    b, a = make("BWorker", aliases=("Old::BWorker",)), make("AWorker")
    assert registry.find("BWorker") is registry.find("Old::BWorker") is b
    assert registry.find("CWorker") is None
    assert registry.workers() == [a, b]
    assert registry.nearest_name("BWorkr") == "BWorker"


def test_registry_refuses_a_second_class_of_a_wire_name():
    make("AWorker", "workers.one")
    with pytest.raises(DeclarationError) as caught:
        make("AWorker", "workers.two")
    assert "workers.one.AWorker" in str(caught.value)
    assert "workers.two.AWorker" in str(caught.value)
    assert caught.value.attribute == "wire_name"


def test_registry_refuses_an_alias_that_is_taken():
    first = make("AWorker")
    with pytest.raises(DeclarationError) as caught:
        make("BWorker", aliases=("AWorker",))
    assert caught.value.attribute == "aliases"
    assert registry.workers() == [first]


def test_registry_replaces_a_class_defined_again():
    make("AWorker", aliases=("Old",))
    again = make("AWorker", aliases=("Older",))
    assert registry.find("AWorker") is again
    assert registry.find("Old") is None
    assert registry.find("Older") is again


def test_registry_isolation_ends_with_its_block():
    outside = make("AWorker")
    with registry.isolated():
        assert registry.workers() == []
        make("AWorker", "workers.other")
    assert registry.workers() == [outside]


WORKER = """
from framework.application_worker import ApplicationWorker


class {name}(ApplicationWorker):
    feature_category = "x"

    def perform(self) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_load_imports_sub_packages_but_no_main(project: Path):
    write(project / "shop_b/__init__.py")
    write(project / "shop_b/__main__.py", "raise SystemExit('started')")
    write(project / "shop_b/workers/__init__.py")
    write(project / "shop_b/workers/mail/__init__.py")
    write(project / "shop_b/workers/mail/digest.py", WORKER.format(name="DigestWorker"))
    write(project / "jobs_b.py", WORKER.format(name="NoopWorker"))
    registry.load(["shop_b", "jobs_b"])
    names = [worker.declaration().wire_name for worker in registry.workers()]
    assert names == ["Mail::DigestWorker", "NoopWorker"]


def test_load_after_isolation_restores_workers(project: Path):
    write(project / "jobs_c.py", WORKER.format(name="NoopWorker"))
    with registry.isolated():
        registry.load(["jobs_c"])
    assert registry.workers() == []
    registry.load(["jobs_c"])
    assert [worker.__name__ for worker in registry.workers()] == ["NoopWorker"]


def test_load_names_every_module_it_cannot_import(project: Path):
    write(project / "broken_d/__init__.py")
    write(project / "broken_d/syntax.py", "def :")
    write(project / "broken_d/missing.py", "import no_such_library_d")
    write(project / "broken_d/fails.py", "1 / 0")
    write(project / "broken_d/leaves.py", "import sys; sys.exit(3)")
    write(project / "broken_d/slip.py", WORKER.format(name="SlipWorker").replace('"x"', '"x"\n    urgency = "hihg"'))
    with pytest.raises(ConfigurationError) as caught:
        registry.load(["broken_d", "no_such_module_d"])
    found = {problem.file: problem.message for problem in caught.value.problems}
    assert found.keys() == {
        "broken_d.syntax",
        "broken_d.missing",
        "broken_d.fails",
        "broken_d.leaves",
        "broken_d.slip",
        "no_such_module_d",
    }
    assert "line 1" in found["broken_d.syntax"]
    assert "imports 'no_such_library_d'" in found["broken_d.missing"]
    assert "ZeroDivisionError" in found["broken_d.fails"]
    assert "SystemExit: 3" in found["broken_d.leaves"]
    assert "did you mean 'high'" in found["broken_d.slip"]
    assert "no module of that name" in found["no_such_module_d"]
