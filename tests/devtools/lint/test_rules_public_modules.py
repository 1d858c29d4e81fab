"""Test that code, lint and guide have the same list of public modules."""

import importlib
from pathlib import Path

import framework
from framework.devtools.lint.rules.perform_body import PUBLIC_MODULES, is_public
from tests.harness import ROOT

FACADES = {path.stem for path in Path(framework.__file__).parent.glob("*.py")} - {
    "__init__",
    "__main__",
    "all_settings",
    "application_worker",
    "async_twin",
    "backoff",
    "by_name",
    "call_threads",
    "cancellation",
    "command_line",
    "cron_expression",
    "exit_codes",
    "extensions",
    "feature",
    "function_jobs",
    "known_secrets",
    "lazy_names",
    "messages",
    "private_files",
    "process_clock",
    "pytest_plugin",
    "results",
    "supervised_threads",
    "text",
    "timings",
    "typeguards",
    "version",
    "worker_attributes",
} | {"admin", "enumerators", "middleware", "tasks", "testing"}


def test_public_modules_are_those_beside_the_layers():
    """The list has every facade at the top of the package, and every listed module can be imported."""
    assert {name for name in PUBLIC_MODULES if "." not in name} == FACADES
    for name in PUBLIC_MODULES:
        assert importlib.import_module(f"framework.{name}").__doc__


def test_public_modules_are_those_that_the_guide_shows():
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `framework.")]
    assert rows == [f"| `framework.{name}` | {text} |" for name, text in PUBLIC_MODULES.items()]
    assert all(f"`{name}`" in page for name in framework.__all__)


def test_is_public_distinguishes_module_from_its_members():
    assert all(is_public(name) for name in (*PUBLIC_MODULES, "health.register", "middleware.server"))
    assert not any(is_public(name) for name in ("wiring", "store", "healthy", "pause_", "policies.pause"))
