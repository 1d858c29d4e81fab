"""Test folders of the application with the name of the framework or of an installed package, in real processes."""

import sys
from pathlib import Path

import pytest

CONSOLE = str(Path(sys.executable).parent / "application-worker")
WORKER = """
from framework import ApplicationWorker
{extra}

class ShopWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self) -> None: ...
"""


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def shadow(folder):
    (folder / "framework").mkdir()
    (folder / "framework" / "__init__.py").write_text("")
    (folder / "framework" / "models.py").write_text("PRICE = 3")


def test_folder_named_framework_stops_no_console_script(cold_site):
    shadow(cold_site.folder)
    write(cold_site.folder, shop_jobs=WORKER.format(extra=""))
    done = cold_site.run(CONSOLE, "route", "-r", "shop_jobs")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ShopWorker" in done.stdout


def test_file_named_framework_stops_no_module(cold_site):
    write(cold_site.folder, framework="raise SystemExit('theirs')", shop_jobs=WORKER.format(extra=""))
    done = cold_site.run("-P", "-m", "framework", "route", "-r", "shop_jobs")
    assert (done.returncode, done.stderr) == (0, "")


def test_cluster_children_run_beside_a_folder_framework(cold_site):
    shadow(cold_site.folder)
    group = cold_site.start(CONSOLE, "cluster", "-r", "jobs", "default", "--timeout", "1")
    group.line(event_name="process.ready")
    assert group.end() == 0
    assert not group.find(event_name="child.died")


@pytest.mark.parametrize(
    "extra",
    [
        "import framework.models",
        "from framework import models",
        "import framework\nprint(framework.models)",
    ],
)
def test_import_from_the_hidden_folder_names_it(cold_site, extra):
    shadow(cold_site.folder)
    write(cold_site.folder, shop_jobs=WORKER.format(extra=extra))
    done = cold_site.run(CONSOLE, "route", "-r", "shop_jobs")
    assert (done.returncode, done.stdout) == (78, "")
    assert f"hides {cold_site.folder.resolve() / 'framework'}, which has the same name; rename that one" in done.stderr
    assert "shop_jobs.py, line 3" in done.stderr or "shop_jobs.py, line 4" in done.stderr


def test_required_module_of_the_hidden_folder_names_it(cold_site):
    shadow(cold_site.folder)
    done = cold_site.run(CONSOLE, "route", "-r", "framework.models")
    assert done.returncode == 78
    assert f"{cold_site.folder.resolve() / 'framework' / '__init__.py'} cannot be imported: rename it" in done.stderr


def test_module_named_like_a_dependency_is_refused(cold_site):
    write(cold_site.folder, redis=WORKER.format(extra=""))
    done = cold_site.run(CONSOLE, "route", "-r", "redis")
    assert done.returncode == 78
    assert f"{cold_site.folder.resolve() / 'redis.py'} cannot be imported: rename it" in done.stderr


def test_folder_named_like_a_dependency_hides_no_import(cold_site):
    write(cold_site.folder, redis="raise SystemExit('theirs')", yaml="raise SystemExit('theirs')")
    write(cold_site.folder, shop_jobs=WORKER.format(extra="from redis import Redis"))
    done = cold_site.run(CONSOLE, "route", "-r", "shop_jobs")
    assert (done.returncode, done.stderr) == (0, "")


def test_required_module_overrides_an_installed_one(cold_site):
    """The application's module has the name of an installed package that the framework does not use."""
    installed = cold_site.folder / "site"
    installed.mkdir()
    write(installed, jobs_of_all="raise SystemExit('theirs')")
    write(cold_site.folder, jobs_of_all=WORKER.format(extra=""))
    done = cold_site.run(CONSOLE, "route", "-r", "jobs_of_all", PYTHONPATH=str(installed))
    assert (done.returncode, done.stderr) == (0, "")
    assert "ShopWorker" in done.stdout
