"""Check the rules of this project that no linter has. Each check reads the source, so a failure names a line."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import framework
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted((ROOT / "framework").rglob("*.py"))

# The names are in pieces, so that this file passes its own test.
MACHINE_PATHS = re.compile("|".join(["/" + "work/(main|shared)", "/" + "root/", "/" + "opt/pypi"]))
INDEX_HOSTS = re.compile(
    "|".join(["python" + r"hosted\.org", r"pypi\.org/" + "simple", "index" + "-url ", "find" + "-links "])
)
TEXT = {".py", ".toml", ".lock", ".md", ".yml", ".yaml", ".lua", ".html", ".txt", ".cfg", ".json", ""}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return nodes_of(path, ast.FunctionDef, ast.AsyncFunctionDef)


def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return nodes_of(path, ast.Import, ast.ImportFrom)


def packages(node: ast.Import | ast.ImportFrom) -> set[str]:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
    return {name.partition(".")[0] for name in names}


def test_house_rules_have_files_to_check() -> None:
    assert SOURCES


def test_own_modules_are_imported_at_the_top() -> None:
    """An import of the package inside a function hides a cycle from the check of layers."""
    late = [
        f"{relative(path)}:{one.lineno}"
        for path in SOURCES
        for one in imports(path)
        if packages(one) & {"framework", "workers"}
        and any(function.lineno <= one.lineno <= (function.end_lineno or 0) for function in functions(path))
    ]
    assert not late


def test_every_thread_is_supervised() -> None:
    """A thread that dies unseen leaves a process that looks alive: ``SupervisedThread`` reports it."""
    kinds = ("Thread", "Timer", "ThreadPoolExecutor", "start_new_thread")
    found = [
        f"{relative(path)}:{one.lineno}"
        for path in SOURCES
        if relative(path) != "framework/supervised_threads.py"
        for one in nodes_of(path, ast.Call)
        if ast.unparse(one.func).rpartition(".")[2] in kinds
    ]
    assert not found


def test_every_thread_is_in_the_table() -> None:
    """The table says what happens when a thread cannot start or dies."""
    page = (ROOT / "docs" / "internals" / "way_of_a_job.md").read_text()
    (section,) = [part for part in page.split("\n## ") if part.startswith("Threads")]
    named = re.findall(r"`([^`]+)`", " ".join(line.split("|")[1] for line in section.splitlines() if "|" in line))
    started = {
        ast.unparse(one.args[0]).removeprefix("f").strip("'").partition("{")[0]
        for path in SOURCES
        for one in nodes_of(path, ast.Call)
        if ast.unparse(one.func) in ("SupervisedThread", "PeriodicTask", "CallPool")
        and isinstance(one.args[0], ast.Constant | ast.JoinedStr)
    }
    assert len(started) > 25
    assert not [name for name in started if not any(one.startswith(name) for one in named)]


def test_framework_never_imports_workers() -> None:
    wrong = [
        f"{relative(path)}:{node.lineno}" for path in SOURCES for node in imports(path) if "workers" in packages(node)
    ]
    assert not wrong


def public_classes(paths: Iterable[Path]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for path in paths:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(relative(path))
    return places


def test_public_class_names_are_unique() -> None:
    """A class name means one thing in the whole package."""
    assert {name: files for name, files in public_classes(SOURCES).items() if len(files) > 1} == {}


def test_tooling_reuses_no_class_name_of_the_package() -> None:
    folders = [ROOT / "tests" / name for name in ("bench", "proofs", "chaos/rounds", "servers")]
    tooling = public_classes(path for folder in folders for path in folder.rglob("*.py"))
    package = public_classes(SOURCES)
    assert {name: files for name, files in tooling.items() if name in package} == {}


def test_file_names_are_used_at_most_twice() -> None:
    """Files below features/ are exempt: those folders have the same parts. So are those whose names Django gives."""
    exempt = {"features", "management", "templatetags"}
    names = Counter(path.name for path in SOURCES if exempt.isdisjoint(path.parts) and path.name != "__init__.py")
    assert {name: count for name, count in names.items() if count > 2} == {}


def test_package_has_a_docstring() -> None:
    folders = {path.parent for path in SOURCES}
    silent = [
        relative(folder)
        for folder in sorted(folders)
        if not (folder / "__init__.py").exists() or not ast.get_docstring(tree_of(folder / "__init__.py"))
    ]
    assert not silent


def test_root_exports_are_sorted_and_whole() -> None:
    """Compare the imports, which type checkers read, with the names that ``__getattr__`` loads at run time."""
    tree = tree_of(ROOT / "framework" / "__init__.py")
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert framework.__all__ == sorted(imported)
    assert {name: getattr(framework, name).__module__ for name in imported} == imported


@pytest.fixture(scope="module")
def committed() -> dict[str, str]:
    """Return the text files under version control."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout, so there is no list of committed files")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return {
        relative(path): path.read_text(errors="replace") for path in paths if path.is_file() and path.suffix in TEXT
    }


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, INDEX_HOSTS], ids=["machine path", "package index"])
def test_nothing_committed_belongs_to_one_machine(committed: dict[str, str], pattern: re.Pattern[str]) -> None:
    found = {name: match.group() for name, text in committed.items() if (match := pattern.search(text))}
    assert not found


def test_lock_pins_every_package_by_hash() -> None:
    for name in ("requirements.lock", "demo.lock", "pip.lock"):
        text = (ROOT / "scripts" / name).read_text().replace("\\\n", " ")
        entries = [line for line in text.splitlines() if line.strip()]
        assert entries
        assert not [line for line in entries if "==" not in line or "--hash=sha256:" not in line]


def test_lock_of_the_demo_is_a_part_of_the_whole_lock() -> None:
    whole, demo = (
        set((ROOT / "scripts" / f"{name}.lock").read_text().splitlines()) for name in ("requirements", "demo")
    )
    assert demo < whole, "run scripts/setup --relock"


def test_ci_checks_generated_files_and_compatibility() -> None:
    """CI runs scripts/test, which has these steps."""
    assert (ROOT / ".ci" / "run").read_text().endswith("\nexec python3 scripts/test\n")
    tree = tree_of(ROOT / "scripts" / "test")
    steps = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "STEPS" for one in node.targets)
    )
    commands = {
        ast.literal_eval(step.elts[0]): {one.value for one in ast.walk(step.elts[1]) if isinstance(one, ast.Constant)}
        for step in steps.elts
    }
    assert commands["generate_queues"] == {"python", "scripts", "generate_queues", "--check"}
    assert commands["check_compat"] == {"python", "scripts", "check_compat"}
    # No test repeats these steps. They also check tests/typing: type checkers accept every correct call.
    assert {"ruff", "mypy", "pyright", "lint-imports"} <= set().union(*commands.values())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert "tests/typing" in settings["mypy"]["files"]
    assert "tests/typing" in settings["pyright"]["include"]


_CONNECTIONS = ("open_client", "open_shards", "open_channel", "Shard", r"redis\.Redis", "from_pool")
CONNECTS = re.compile(rf"(?<!def )(?<!\w)({'|'.join(_CONNECTIONS)})\(")


def test_every_module_that_connects_to_redis_is_listed():
    """The page says for each how its shard is chosen, and which tests show it."""
    page = (ROOT / "docs" / "internals" / "redis.md").read_text()
    listed = page.partition("## What connects to a job Redis")[2].partition("\n## ")[0]
    cells = " ".join(line.split("|")[1] for line in listed.splitlines() if line.startswith("|"))
    connecting = {relative(path).removeprefix("framework/") for path in SOURCES if CONNECTS.search(path.read_text())}
    assert connecting == set(re.findall(r"[\w/]+\.py", cells))
    assert [one for one in re.findall(r"`(tests/[\w./]+)`", listed) if not (ROOT / one).exists()] == []
