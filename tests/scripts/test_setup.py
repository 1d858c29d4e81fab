"""Test scripts/setup with real runs on small checkouts with a lock of their own; packages come from a folder, no
network.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SETUP = ROOT / "scripts" / "setup"
PYTHON = str(getattr(sys, "_base_executable", sys.executable))
DEMO_PACKAGES = ("editables", "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")
OTHER_PACKAGE = "iniconfig"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "application-worker"
version = "{version}"
[tool.hatch.build.targets.wheel]
packages = ["framework"]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def repacked(name: str, folder: Path) -> str:
    """Make a wheel again from an installed distribution; return its line for a lock."""
    found = distribution(name)
    wheel = folder / f"{name.replace('-', '_')}-{found.version}-py3-none-any.whl"
    kept = [file for file in found.files or () if ".." not in file.parts and file.suffix != ".pyc"]
    kept = [file for file in kept if file.name not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")]
    record = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in kept:
            data = file.read_binary()
            archive.writestr(str(file), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(data)}")
        info = next(file.parts[0] for file in kept if file.parts[0].endswith(".dist-info"))
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return f"{name}=={found.version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    demo = "".join(repacked(name, folder) for name in DEMO_PACKAGES)
    (folder / "demo.lock").write_text(demo)
    (folder / "requirements.lock").write_text(demo + repacked(OTHER_PACKAGE, folder))
    (folder / "pip.lock").write_text(repacked("pip", folder))
    return folder


class Checkout:
    """A small checkout with the real scripts/setup in it."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_NO_COMPILE": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }
        (folder / "scripts").mkdir(parents=True)
        (folder / "framework").mkdir()
        (folder / "framework" / "__init__.py").write_text("")
        shutil.copy(SETUP, folder / "scripts" / "setup")
        for lock in ("requirements.lock", "demo.lock", "pip.lock"):
            shutil.copy(wheels / lock, folder / "scripts" / lock)
        self.release("1.0")

    def release(self, version: str) -> None:
        (self.folder / "pyproject.toml").write_text(PROJECT.format(version=version))

    def start(self, *arguments: str, cwd: Path | None = None, prelude: str = "") -> subprocess.Popen[str]:
        setup = str(self.folder / "scripts" / "setup")
        command = [PYTHON, setup, *arguments]
        if prelude:
            code = (
                f"import runpy, sys\nsys.argv = [{setup!r}]\n{prelude}\nrunpy.run_path({setup!r}, run_name='__main__')"
            )
            command = [PYTHON, "-c", code]
        return subprocess.Popen(
            command, env=self.environment, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, *arguments: str, cwd: Path | None = None, prelude: str = "") -> tuple[int, str]:
        process = self.start(*arguments, cwd=cwd, prelude=prelude)
        output, _ = process.communicate()
        return process.returncode, output

    def version(self) -> str:
        """Return the version of the project in the environment; this also proves that the environment works."""
        code = "import framework, importlib.metadata as m; print(m.version('application-worker'))"
        python = str(self.folder / ".venv" / "bin" / "python")
        return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def has_all(self) -> bool:
        """Return whether the environment has the package that is in the whole lock only."""
        return any((self.folder / ".venv").glob(f"lib/*/site-packages/{OTHER_PACKAGE}/__init__.py"))

    def environments(self) -> list[Path]:
        return [path for path in self.folder.glob(".venv-*") if path.is_dir() and not path.is_symlink()]


@pytest.fixture
def checkout(tmp_path: Path, wheels: Path) -> Checkout:
    return Checkout(tmp_path / "check out", wheels)


@pytest.mark.campaign
def test_setup_makes_keeps_and_renews_an_environment(checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    status, output = checkout.run(cwd=elsewhere)
    assert status == 0, output
    assert "no finished environment" in output
    assert "ready: .venv" in output
    assert checkout.version() == "1.0"
    assert list(elsewhere.iterdir()) == []
    first = (checkout.folder / ".venv").resolve()
    lock = checkout.folder / "scripts" / "requirements.lock"
    stamp = json.loads((first / "stamp.json").read_text())
    assert stamp["root"] == str(checkout.folder)
    assert stamp["lock"] == hashlib.sha256(lock.read_bytes()).hexdigest()

    assert checkout.run() == (0, "setup: nothing to do: .venv is up to date\n")
    assert checkout.run("--quiet") == (0, "")

    checkout.release("2.0")
    status, output = checkout.run()
    assert status == 0, output
    assert "pyproject.toml changed" in output
    assert checkout.version() == "2.0"
    assert (checkout.folder / ".venv").resolve() == first, "only the project was installed again"

    good = lock.read_text()
    lock.write_text(good.replace("sha256:", "sha256:0000", 1))
    status, output = checkout.run()
    assert status == 1
    assert "setup stopped at: installing the pinned packages" in output
    assert "What to do:" in output
    assert checkout.version() == "2.0", "the environment from before is still there"
    assert checkout.environments() == [first], "the failed environment is deleted"

    lock.write_text(good + "\n")
    status, output = checkout.run()
    assert status == 0, output
    assert "the lock changed" in output
    assert checkout.version() == "2.0"
    assert (checkout.folder / ".venv").resolve() != first


@pytest.mark.campaign
def test_setup_with_broken_project_file_names_it(checkout: Checkout) -> None:
    checkout.folder.joinpath("pyproject.toml").write_text("[project]\nname = ")
    status, output = checkout.run()
    assert status == 1
    assert "setup stopped at: installing the project itself" in output
    assert not (checkout.folder / ".venv").exists()
    checkout.release("1.0")
    assert checkout.run()[0] == 0
    assert checkout.version() == "1.0"


@pytest.mark.campaign
def test_setup_after_a_kill_continues(checkout: Checkout) -> None:
    """The pip of the killed run may still run; the second run waits for it before it deletes the unfinished environment."""
    process = checkout.start()
    assert process.stdout
    for line in process.stdout:
        if "installing up to" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert not (checkout.folder / ".venv").exists(), "an unfinished environment has no link"
    assert len(checkout.environments()) == 1
    status, output = checkout.run()
    assert status == 0, output
    assert checkout.version() == "1.0"
    assert checkout.environments() == [(checkout.folder / ".venv").resolve()], "the unfinished environment is deleted"


@pytest.mark.campaign
def test_setup_extends_an_environment_of_the_demo(checkout: Checkout, wheels: Path, tmp_path: Path) -> None:
    status, output = checkout.run("--demo")
    assert status == 0, output
    assert "it has the packages of scripts/demo, and scripts/setup adds the others" in output
    assert (checkout.version(), checkout.has_all()) == ("1.0", False)
    assert checkout.run("--demo", "--quiet") == (0, "")
    first = (checkout.folder / ".venv").resolve()

    checkout.environment["PIP_FIND_LINKS"] = str(tmp_path)  # no other package can be had a second time
    (wheel,) = wheels.glob(f"{OTHER_PACKAGE}-*.whl")
    shutil.copy(wheel, tmp_path)
    checkout.release("2.0")
    script = make_header_script(checkout.folder, "print(sys.prefix)\n", of="docs", until="def build")
    command = [str(checkout.folder / ".venv" / "bin" / "python"), str(script)]
    output = subprocess.run(command, env=checkout.environment, capture_output=True, text=True, check=False).stdout
    assert "adding the others" in output
    assert output.endswith(f"\n{checkout.folder / '.venv'}\n")
    assert (checkout.version(), checkout.has_all()) == ("2.0", True)
    assert (checkout.folder / ".venv").resolve() == first
    assert checkout.run() == checkout.run("--demo") == (0, "setup: nothing to do: .venv is up to date\n")

    checkout.environment["PIP_FIND_LINKS"] = str(wheels)
    lock = checkout.folder / "scripts" / "requirements.lock"
    lock.write_text(lock.read_text() + "\n")
    status, output = checkout.run("--demo")
    assert status == 0, output
    assert "the lock changed" in output
    assert checkout.has_all(), "an environment with all packages keeps them all"


@pytest.mark.campaign
def test_setup_interrupted_while_it_extends_rebuilds(checkout: Checkout) -> None:
    assert checkout.run("--demo")[0] == 0
    first = (checkout.folder / ".venv").resolve()
    process = checkout.start()
    assert process.stdout
    for line in process.stdout:
        if "installing up to" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert checkout.run("--demo", "--quiet") == (0, ""), "the demo has all that it needs"
    checkout.release("2.0")
    assert checkout.run("--demo")[0] == 0
    assert checkout.version() == "2.0"
    status, output = checkout.run()
    assert status == 0, output
    assert "an earlier run that extended .venv was interrupted" in output
    assert (checkout.version(), checkout.has_all()) == ("2.0", True)
    assert (checkout.folder / ".venv").resolve() != first


@pytest.mark.campaign
def test_setup_run_twice_at_once_makes_one_environment(checkout: Checkout) -> None:
    runs = [checkout.start() for _ in range(2)]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert sum("ready: .venv" in output for output in outputs) == 1
    assert sum("waiting for it" in output for output in outputs) == 1
    assert checkout.version() == "1.0"


@pytest.mark.campaign
def test_setup_replaces_foreign_and_moved_environments(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.folder / ".venv" / "bin").mkdir(parents=True)
    assert checkout.run()[0] == 0
    assert checkout.version() == "1.0"
    checkout.folder = checkout.folder.rename(tmp_path / "moved")
    status, output = checkout.run()
    assert status == 0, output
    assert "no finished environment" in output
    assert checkout.version() == "1.0"


WITHOUT_ENSUREPIP = """#!/bin/sh
case "$*" in
  *"-m venv --without-pip"*) ;;
  *"-m venv"*) echo "The virtual environment was not created: ensurepip is not available."; exit 1 ;;
esac
exec {python} "$@"
"""


@pytest.mark.campaign
def test_setup_works_without_ensurepip(checkout: Checkout, tmp_path: Path) -> None:
    """On Debian without python3-venv `python3 -m venv` fails, and setup uses the system's pip."""
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the Python under this environment has no pip of its own to fall back on")
    python = tmp_path / "python3"
    python.write_text(WITHOUT_ENSUREPIP.format(python=PYTHON))
    python.chmod(0o755)
    status, output = checkout.run(prelude=f"sys._base_executable = {str(python)!r}")
    assert status == 0, output
    assert "has no ensurepip" in output
    assert checkout.version() == "1.0"
    pip = [str(checkout.folder / ".venv" / "bin" / "python"), "-m", "pip", "--version"]
    assert subprocess.run(pip, capture_output=True, check=False).returncode == 0


def test_setup_with_an_old_python_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    checkout.environment["PATH"] = str(tmp_path)
    status, output = checkout.run(prelude="sys.version_info = (3, 9, 1)")
    assert status == 1
    assert "Python 3.11 or newer is needed; this is 3.9.1" in output
    assert "What to do: install Python 3.11" in output


@pytest.mark.campaign
def test_setup_ignores_pip_settings_of_the_user(checkout: Checkout, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    checkout.environment |= {
        "PIP_TARGET": str(wrong),
        "PIP_USER": "1",
        "PYTHONPATH": str(wrong),
        "PIP_REQUIRE_VIRTUALENV": "1",
    }
    status, output = checkout.run()
    assert status == 0, output
    assert checkout.version() == "1.0"
    assert not wrong.exists()


def make_header_script(folder: Path, body: str, *, of: str = "store", until: str = "from framework") -> Path:
    """Write a script with the header of scripts/store, which is that of most scripts, or of another one."""
    text = (ROOT / "scripts" / of).read_text()
    script = folder / "scripts" / "probe"
    script.write_text(text[: text.index(until)] + body)
    script.chmod(0o755)
    return script


@pytest.mark.campaign
def test_script_moves_into_the_environment_with_its_pid(checkout: Checkout, tmp_path: Path) -> None:
    script = make_header_script(checkout.folder, "print(os.getpid(), sys.prefix, os.getcwd(), sys.argv[1:])\n")
    done = subprocess.run([PYTHON, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Run scripts/setup first" in done.stderr
    assert checkout.run()[0] == 0
    process = subprocess.Popen([PYTHON, str(script), "a b"], cwd=tmp_path, text=True, stdout=subprocess.PIPE)
    output = process.communicate()[0].strip()
    assert output == f"{process.pid} {checkout.folder / '.venv'} {tmp_path} ['a b']"


# --- an environment of another Python --------------------------------------------------------------------------------

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
ANSWERS = "#!/bin/sh\nexit 0\n"  # an interpreter that claims to be of any version
SHIM = '#!/bin/sh\necho "pyenv: the version is not switched on" >&2\nexit 127\n'


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.campaign
def test_setup_python_option_makes_a_second_environment(checkout: Checkout) -> None:
    status, output = checkout.run("--python", OWN)
    assert status == 0, output
    assert f"ready: .venv{OWN}" in output
    assert not (checkout.folder / ".venv").exists()
    second = (checkout.folder / f".venv{OWN}").resolve()
    assert checkout.run("--python", OWN) == (0, f"setup: nothing to do: .venv{OWN} is up to date\n")

    status, output = checkout.run()
    assert status == 0, output
    assert (checkout.folder / f".venv{OWN}").resolve() == second
    assert set(checkout.environments()) == {second, (checkout.folder / ".venv").resolve()}, (
        "neither run deletes the environment of the other"
    )


@pytest.mark.campaign
def test_script_started_in_a_second_environment_stays_there(checkout: Checkout) -> None:
    assert checkout.run("--python", OWN)[0] == 0
    script = make_header_script(checkout.folder, "print(sys.prefix)\n")
    inside = checkout.folder / f".venv{OWN}" / "bin" / "python"
    for _ in range(2):  # without a .venv, and with one
        output = subprocess.run([str(inside), str(script)], capture_output=True, text=True, check=False)
        assert output.stdout.strip() == str(checkout.folder / f".venv{OWN}"), output.stderr
        assert checkout.run()[0] == 0


@pytest.mark.parametrize(
    ("version", "status", "message"),
    [
        ("3.98", 1, "This machine has no Python 3.98: python3.98 is not on PATH"),
        ("3.10", 2, "Python 3.11 or newer is needed, not 3.10"),
        ("3.13.1", 2, "'3.13.1' is no version of Python such as 3.13"),
    ],
)
def test_python_not_installable_is_named(checkout: Checkout, version: str, status: int, message: str) -> None:
    found, output = checkout.run("--python", version)
    assert (found, message in output) == (status, True), output
    assert not list(checkout.folder.glob(".venv?*[0-9]"))


def test_scripts_test_unknown_python_names_the_remedy() -> None:
    command = [PYTHON, str(ROOT / "scripts" / "test"), "--python", "3.98"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "What to do: install it (for instance `pyenv install 3.98`" in done.stderr


def found_python(version: str, environment: dict[str, str]) -> str:
    code = f"import runpy; print(runpy.run_path({str(SETUP)!r})['find_python']({version!r}))"
    command = [PYTHON, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_setup_uses_the_newest_working_pyenv_python(tmp_path: Path) -> None:
    """A pyenv program on PATH fails for a version that is not active; an old folder may fail too."""
    for folder, text in (("3.98.2", ANSWERS), ("3.98.10", ANSWERS), ("3.98.11", SHIM), ("3.9.8", ANSWERS)):
        write_program(tmp_path / "versions" / folder / "bin" / "python3.98", text)
    write_program(tmp_path / "shims" / "python3.98", SHIM)
    environment = {**os.environ, "PYENV_ROOT": str(tmp_path), "PATH": f"{tmp_path / 'shims'}{os.pathsep}/usr/bin"}
    expected = tmp_path / "versions" / "3.98.10" / "bin" / "python3.98"
    assert found_python("3.98", environment) == str(expected)

    on_path = write_program(tmp_path / "shims" / "python3.98", ANSWERS)
    assert found_python("3.98", environment) == str(on_path)


def test_setup_uses_its_own_python_for_its_version(tmp_path: Path) -> None:
    environment = {**os.environ, "PYENV_ROOT": str(tmp_path), "PATH": str(tmp_path)}
    assert found_python(OWN, environment) == PYTHON


# --- the packages of the demo ---------------------------------------------------------------------------------------

WITHOUT_OTHERS = """
import importlib, importlib.metadata as metadata, sys
kept, modules = (set(words.split(",")) for words in sys.argv[1:])
canonical = lambda name: name.lower().replace("_", "-").replace(".", "-")
tops = metadata.packages_distributions().items()
missing = {top for top, owners in tops if not kept & {canonical(owner) for owner in owners}} - {"framework"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"no module {name!r} in an environment of scripts/demo", name=name)

assert {"pytest", "psycopg", "sphinx"} <= missing
sys.meta_path.insert(0, Missing())
for module in sorted(modules):
    importlib.import_module(module)
from framework.declare import registry
registry.load(["workers"])
"""
WHOLE = {"setup", "test", "docs", "bench", "chaos", "prove", "dashboard_pictures"}
"""The commands that need all packages, or none."""


def test_commands_run_with_the_packages_of_the_demo() -> None:
    commands = [path for path in (ROOT / "scripts").iterdir() if not path.suffix and path.name not in WHOLE]
    found = {name for path in commands for name in re.findall(r"from (\S+) import", path.read_text())}
    modules = {name for name in found if name.startswith(("framework.", "demo."))}
    assert {"framework.cli.store", "demo.run", "demo.scenarios.run"} <= modules
    kept = [line.partition("==")[0] for line in (ROOT / "scripts" / "demo.lock").read_text().splitlines()]
    command = [sys.executable, "-c", WITHOUT_OTHERS, ",".join(kept), ",".join(modules)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
