"""Check what a forge and a new engineer look for: pages at the root, workflows, hooks, owners, the picture of the architecture."""

import ast
import re

import pytest
import yaml

from tests.harness import ROOT

# Rooms that are still to be made have a line already.
CORE = {path.parent.name for path in (ROOT / "framework").glob("*/__init__.py")} - {"features"}
ROOMS = {path.parent.name for path in (ROOT / "framework" / "features").glob("*/__init__.py")}


def steps_of_the_test_command():
    """Return the names of the steps of scripts/test."""
    for node in ast.parse((ROOT / "scripts" / "test").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("STEPS", "TESTS"):
            value = node.value
            many = value.elts if isinstance(value.elts[0], ast.Tuple) else [value]
            yield from (one.elts[0].value for one in many)


def test_hooks_are_the_steps_of_the_test_command():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["name"]: hook["entry"] for hook in repository["hooks"]}
    assert list(hooks) == list(steps_of_the_test_command())
    assert hooks == {name: f'python3 scripts/test --step "{name}"' for name in hooks}


def test_workflows_run_the_commands_of_developers():
    tests, campaigns = ((ROOT / ".github" / "workflows" / f"{name}.yml").read_text() for name in ("test", "campaigns"))
    metadata = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'requires-python = ">=3.11', metadata)
    assert 'python: ["3.11", "3.12", "3.13", "3.14"]' in tests
    assert "scripts/test\n" in tests
    assert "scripts/test --campaigns\n" in campaigns
    assert "schedule:" in campaigns


def test_each_room_and_folder_of_the_core_has_an_owner():
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    owned = {line.split()[0]: line.split()[1:] for line in lines if line and not line.startswith("#")}
    assert all(owners and all(one.startswith("@") for one in owners) for owners in owned.values())
    wanted = {*(f"/framework/{name}/" for name in CORE), *(f"/framework/features/{name}/" for name in ROOMS)}
    assert sorted(wanted - owned.keys()) == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE"])
def test_pages_that_forges_show_are_at_the_root(name):
    page = ROOT / name
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [one for one in targets if "://" not in one and not (ROOT / one).exists()] == []


def test_each_room_has_a_page():
    assert sorted(name for name in ROOMS if not (ROOT / "docs" / "guides" / f"{name}.md").exists()) == []
