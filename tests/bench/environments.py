"""Create the environments of contestants on demand: one per lock; Sidekiq from Debian."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.contestants import Contestant
from tests.bench.errors import ContestantSkipped
from tests.bench.progress import say

LOCKS = Path(__file__).resolve().parent / "locks"
INSTALL_S = 600.0
LAST_LINES = 5


def prepared(contestant: Contestant, parent: Path) -> Path | None:
    """Return the folder of the contestant's environment, created if needed; None when it needs none.

    Raises:
        ContestantSkipped: the environment cannot be created.
    """
    if contestant.ruby:
        _sidekiq()
    return _environment(contestant.lock, parent) if contestant.lock else None


def pinned_versions(lock: str) -> list[str]:
    """Return the packages named in the source of a lock, with the versions it pins."""
    named = [re.split("[=<>]", line)[0] for line in (LOCKS / f"{lock}.in").read_text().split()]
    pins = [line.split(" ")[0] for line in (LOCKS / f"{lock}.lock").read_text().splitlines() if "==" in line]
    return [pin for pin in pins if pin.split("==")[0] in {name.replace("_", "-") for name in named}]


def sidekiq_version() -> str:
    """Return the versions of Sidekiq and Ruby; empty without them."""
    versions = []
    for command in (["sidekiq", "--version"], ["ruby", "--version"]):
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
            versions.append(" ".join(done.stdout.split()[:2]))
    return ", ".join(versions)


def _sidekiq() -> None:
    if shutil.which("sidekiq"):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", "ruby-sidekiq"]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ContestantSkipped(f"Sidekiq is not installed; as root on Debian: {' '.join(command)}")
    say("installing ruby-sidekiq")
    _run(["apt-get", "update"])
    _run(command)


def _environment(name: str, parent: Path) -> Path:
    """Create an environment under another name first, so that an existing one is complete."""
    lock = LOCKS / f"{name}.lock"
    folder = parent / f"{name}-{hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    say(f"making the environment of {name}")
    part = parent / f"{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    parent.mkdir(parents=True, exist_ok=True)
    _run([str(getattr(sys, "_base_executable", sys.executable)), "-m", "venv", "--without-pip", str(part)])
    # Without pip of its own, and installed by the project's: the environment can be renamed, as no program in it runs
    # by its path.
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(part / "bin" / "python"),
            "install",
            "--require-hashes",
            "--no-deps",
            "-r",
            str(lock),
        ]
    )
    part.rename(folder)
    return folder


def _run(command: list[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ContestantSkipped(
            f"`{' '.join(command)}` did not finish within {INSTALL_S:g} s; run it by hand"
        ) from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise ContestantSkipped(f"`{' '.join(command)}` failed:\n{last}")
