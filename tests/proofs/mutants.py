"""Wrong versions of the core, as patches: tests of the suite must catch each one, for the expected reason.

A patch says what it breaks, and names the tests that catch it, the fastest first:

    The reaper removes a job with one command and adds it with another.
    Caught by: tests/property/test_histories.py::test_dead_process_is_emptied (I1)
    Caught by: tests/property/test_states.py

The text in brackets must be in the output of the failure. A test that cannot run catches no mutant.
"""

import argparse
import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from demo.stop import StopSignal

HELD, BROKEN, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
FOLDER = Path("tests") / "mutants"
_COPIED = ("framework", "tests", "demo", "scripts", "config", "pyproject.toml")
_CAUGHT = re.compile(r"^Caught by: (?P<test>[^\s\[]+(?:\[[^\]\n]*\])?)(?: \((?P<words>.+)\))?$", re.MULTILINE)
_FAILED = re.compile(r"\b\d+ failed\b")
_ERROR = re.compile(r"\b\d+ errors?\b")
_LONGEST_S = 900


@dataclass(frozen=True)
class Catch:
    """A test that fails on a mutant, and a text of its failure."""

    test: str
    words: str


@dataclass(frozen=True)
class Mutant:
    """One patch."""

    path: Path
    breaks: str
    catches: tuple[Catch, ...]

    @property
    def name(self) -> str:
        """Return ``m01-...``."""
        return self.path.stem

    @property
    def number(self) -> str:
        """Return ``m1``."""
        return f"m{int(self.name[1:3])}"


class StaleError(Exception):
    """The patch does not apply to the current core."""


def mutants(root: Path) -> list[Mutant]:
    """Return every patch."""
    return [_read(path) for path in sorted((root / FOLDER).glob("m*.patch"))]


def _read(path: Path) -> Mutant:
    text = path.read_text()
    catches = tuple(Catch(found["test"], found["words"] or "") for found in _CAUGHT.finditer(text))
    return Mutant(path, text.partition("\n")[0], catches)


class Copy:
    """A copy of the tree, to which one mutant at a time is applied."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "var", ".*")
        for name in _COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=ignored)
            else:
                shutil.copy(root / name, folder / name)
        (folder / ".venv").symlink_to(root / ".venv")  # commands use the .venv of their own checkout
        # All mutants share the compiled files. Files are identified by the hash of their source: a patch may change one
        # twice in a second.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "framework", quiet=2, invalidation_mode=mode)

    def apply(self, mutant: Mutant) -> None:
        """Apply the mutant. Raises StaleError."""
        done = self._git("apply", str(mutant.path))
        if done.returncode:
            raise StaleError(f"{mutant.name}: the patch is stale, regenerate it: {done.stderr.strip()}")

    def undo(self, mutant: Mutant) -> None:
        """Revert the mutant."""
        self._git("apply", "--reverse", str(mutant.path)).check_returncode()

    def _git(self, *words: str) -> "subprocess.CompletedProcess[str]":
        # The copy is not a repository: inside of one, git would use that repository instead.
        env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.folder.parent)}
        return subprocess.run(
            ["git", *words], cwd=self.folder, env=env, capture_output=True, check=False, text=True, timeout=60
        )

    def test(self, test: str) -> "subprocess.CompletedProcess[str]":
        """Run one test, or one file of tests, up to the first failure."""
        words = [
            "-m",
            "pytest",
            test,
            "-x",
            "-q",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            "-m",
            "campaign or not campaign",
            "--hypothesis-profile=unshrunk",
        ]
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("FRAMEWORK_", "PYTEST_", "COV"))
        }
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            # Before the installed checkout, so that the processes of tests run the mutant too.
            env={**env, "PYTHONPATH": str(self.folder), "TESTS_ALL_EXAMPLES": "1"},
            capture_output=True,
            check=False,
            text=True,
            timeout=_LONGEST_S,
        )


def verdict(done: "subprocess.CompletedProcess[str]", words: str) -> str:
    """Return why a test did not catch the mutant; empty when it did."""
    end = done.stdout.rpartition("\n=")[2] or done.stdout[-300:]
    if done.returncode == 0:
        return "the test passed"
    if done.returncode != 1 or not _FAILED.search(end) or _ERROR.search(end):
        return f"the test could not be run: {done.stdout[-1500:]}{done.stderr[-500:]}"
    if words not in done.stdout:
        return f"the test failed, and did not say {words!r}: {done.stdout[-1500:]}"
    return ""


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Run each mutant against the tests that must catch it; return the exit status."""
    wanted = [
        one for one in mutants(root) if not options.only or one.number in options.only or one.name in options.only
    ]
    if not wanted:
        print(
            f"scripts/prove: no such mutant; there are: {', '.join(one.number for one in mutants(root))}",
            file=sys.stderr,
        )
        return WRONG_USAGE
    with tempfile.TemporaryDirectory(prefix="aw-mutants-") as name:
        copy = Copy(root, Path(name))
        pairs = [(one, catch) for one in wanted for catch in one.catches[: 1 if options.fast else None]]
        wrong = _prove_sound(copy, [catch.test for _, catch in pairs], stop)
        if not wrong:
            wrong = _prove_caught(copy, pairs, stop)
    if stop.asked:
        return INTERRUPTED
    print(f"\n{len(wanted)} mutants, {len(pairs)} catches, {wrong} missed", flush=True)
    return BROKEN if wrong else HELD


def _prove_sound(copy: Copy, tests: Iterable[str], stop: StopSignal) -> int:
    """Run the tests without a mutant; a test that fails there proves nothing."""
    wrong = 0
    for test in dict.fromkeys(tests):
        if stop.asked:
            break
        done = copy.test(test)
        if done.returncode:
            wrong += 1
            print(f"  {test} fails without any mutant: {done.stdout[-1500:]}", flush=True)
    return wrong


def _prove_caught(copy: Copy, pairs: list[tuple[Mutant, Catch]], stop: StopSignal) -> int:
    wrong = 0
    for number, (one, catch) in enumerate(pairs, 1):
        if stop.asked:
            break
        try:
            copy.apply(one)
        except StaleError as error:
            print(f"  {error}", flush=True)
            wrong += 1
            continue
        began = time.monotonic()
        missed = verdict(copy.test(catch.test), catch.words)
        copy.undo(one)
        wrong += bool(missed)
        word = f"MISSED: {missed}" if missed else "caught"
        seconds = time.monotonic() - began
        print(f"  {number:>3}/{len(pairs)}  {one.name:<52} {seconds:6.1f} s  {catch.test}  {word}", flush=True)
    return wrong
