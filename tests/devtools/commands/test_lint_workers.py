"""Test scripts/lint_workers: options, output formats, the configuration, and the hook of the guide."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from framework.devtools.lint.linter import RULES
from tests.devtools.lint.conftest import worker, write
from tests.fork_server import FORK_SERVER
from tests.tables import each_row

ROOT = Path(__file__).resolve().parents[3]
WITH_FINDING = "idempotent = False"
STRICT = '[tool.lint_workers]\nselect = ["gitlab"]\n'


def run(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return FORK_SERVER.run([str(ROOT / "scripts" / "lint_workers"), *arguments], cwd, dict(os.environ))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Create a package of workers, one of them with a finding."""
    write(tmp_path, {"workers/mail.py": worker(WITH_FINDING), "workers/post.py": worker(name="Post")})
    (tmp_path / "pyproject.toml").write_text(STRICT)
    return tmp_path


def test_lint_of_this_checkout_has_no_findings():
    done = run(ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+ workers in \d+ files: 0 findings\n", done.stdout)


def test_lint_finding_names_place_code_and_fix_status_1(site: Path):
    done = run(site)
    first, last = done.stdout.splitlines()
    rule = RULES["SEW001"]
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        first == f"workers/mail.py:5:5: SEW001 MailWorker does not declare that a second run does no harm: {rule.fix}"
    )
    assert last == "2 workers in 4 files: 1 finding (scripts/lint_workers --explain SEW001 gives the reason)"
    assert run(site, "workers/post.py").stdout == "1 worker in 1 file: 0 findings\n"


def test_lint_output_formats_for_programs(site: Path):
    (one,) = json.loads(run(site, "--format", "json").stdout)
    assert {name: one[name] for name in ("path", "line", "column", "end_line", "code", "name", "fix")} == {
        "path": "workers/mail.py",
        "line": 5,
        "column": 5,
        "end_line": 5,
        "code": "SEW001",
        "name": "idempotent",
        "fix": RULES["SEW001"].fix,
    }
    clean = run(site, "--format", "json", "workers/post.py")
    assert (clean.returncode, json.loads(clean.stdout)) == (0, [])
    odd = site / "workers" / "a,b%.py"
    odd.write_text(worker("weight = 0"))
    output = run(site, "--format", "github", str(odd)).stdout
    assert output.startswith(
        "::error file=workers/a%2Cb%25.py,line=5,col=5,endLine=5,title=SEW018::MailWorker.weight is refused"
    )
    assert output.count("\n") == 1


def test_lint_select_and_ignore_choose_codes(site: Path):
    assert run(site, "--ignore", "SEW001,SEW002").returncode == 0
    assert run(site, "--select", "SEW002", "--select", "SEW003").returncode == 0
    assert run(site, "--select", "SEW001").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--select", "SEW0001"), "there is no code or set 'SEW0001' (did you mean 'SEW001'?)"),
        (("--select", "gitlba"), "there is no code or set 'gitlba' (did you mean 'gitlab'?)"),
        (("--ignore", "gitlab"), "there is no code 'gitlab'"),
        (("--explain", "SEW01"), "there is no code 'SEW01' (did you mean 'SEW101'?)"),
        (("wrokers",), "there is no file or folder wrokers"),
        (("--list", "workers"), "--list and --explain go alone"),
        (("--format", "jsno"), "(did you mean 'json'?)"),
    ],
)
def test_lint_wrong_usage_status_2(arguments: tuple[str, ...], message: str, site: Path):
    done = run(site, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_lint_lists_and_explains_every_code(site: Path):
    assert [line.split()[0] for line in run(site, "--list").stdout.splitlines()] == list(RULES)
    output = run(site, *(word for code in RULES for word in ("--explain", code))).stdout
    words = " ".join(output.split())
    for rule in RULES.values():
        fix = rule.fix.replace("application-worker attributes", "scripts/attributes")
        fix = fix.replace("application-worker lint-workers", "scripts/lint_workers")
        assert all(text in words for text in (f"{rule.code} {rule.name}: {rule.summary}", rule.why, f"Fix: {fix}."))
        for text in (*rule.bad.strip().splitlines(), *rule.good.splitlines()):
            assert text in output
    assert output.count("It cannot be suppressed.") == 4


@each_row("rule", RULES.values(), ids=RULES)
def test_lint_code_has_well_formed_texts(rule):
    for text in (rule.summary, rule.why):
        assert text.endswith(".")
    assert not rule.fix.endswith(".")
    assert not {"|", "\n"} & {*rule.summary, *rule.fix}  # these characters would end the cell of a table
    assert rule.name == rule.name.lower()


def test_lint_configuration_of_pyproject_is_used(site: Path):
    pyproject = site / "pyproject.toml"
    pyproject.write_text(STRICT + 'per-file-ignores = { "workers/m*.py" = ["SEW001"] }\n')
    assert run(site).returncode == 0
    assert run(site / "workers", ".").returncode == 0
    pyproject.write_text('[tool.lint_workers]\nselect = ["SEW002", "SEW004"]\n')
    assert run(site).returncode == 0
    pyproject.write_text('[tool.lint_workers]\nignroe = ["SEW001"]\nselect = "SEW001"\nignore = ["SEW0001"]\n')
    done = run(site)
    assert (done.returncode, done.stdout) == (78, "")
    for text in (
        "tool.lint_workers.ignroe: is no key of it (did you mean 'ignore'?)",
        "tool.lint_workers.select: 'SEW001' is no list of strings",
        "tool.lint_workers.ignore: there is no code 'SEW0001' (did you mean 'SEW001'?)",
    ):
        assert text in done.stderr
    pyproject.write_text("[tool\n")
    assert run(site).returncode == 78


def test_lint_rule_set_is_selected_by_name(site: Path):
    assert run(site, "--select", "default").returncode == 0
    assert run(site, "--select", "default,SEW001").returncode == 1
    pyproject = site / "pyproject.toml"
    for output, status in (
        ("", 0),
        ('select = ["default"]', 0),
        ('select = ["gitlab"]', 1),
        ('select = ["SEW002", "gitlab"]', 1),
    ):
        pyproject.write_text(f"[tool.lint_workers]\n{output}\n")
        assert run(site).returncode == status, output
    (site / "workers" / "mail.py").write_text(worker("weight = 0"))
    assert run(site, "--select", "default").returncode == 1
    assert run(site, "--select", "gitlab").returncode == 1


def test_worker_of_getting_started_passes_by_default(tmp_path: Path):
    page = (ROOT / "docs" / "learn" / "getting_started.md").read_text()
    for name, text in re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"[1-9] workers? in [1-9] files?: 0 findings\n", done.stdout)
    assert run(tmp_path, "--select", "gitlab").returncode == 1


@pytest.mark.parametrize("setting", ["file", "environment"])
def test_lint_without_path_reads_the_workers_module(tmp_path: Path, setting: str):
    write(
        tmp_path, {"shop/__init__.py": "", "shop/jobs.py": worker("weight = 0"), "shop/other.py": worker("weight = 0")}
    )
    (tmp_path / "mails.py").write_text(worker("weight = 0"))
    environment = dict(os.environ)
    if setting == "file":
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "application.yml").write_text("workers_module: [shop.jobs, mails]\n")
    else:
        environment["FRAMEWORK_WORKERS_MODULE"] = "shop.jobs,mails"
    done = FORK_SERVER.run([str(ROOT / "scripts" / "lint_workers")], tmp_path, environment)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:-1]] == ["mails.py", "shop/jobs.py"]

    environment["FRAMEWORK_WORKERS_MODULE"] = "shpo"
    done = FORK_SERVER.run([str(ROOT / "scripts" / "lint_workers")], tmp_path, environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no module shpo in " in done.stderr
    assert "as workers_module in " in done.stderr


def test_lint_categories_come_from_the_file(site: Path):
    categories = site / "config" / "feature_categories.yml"
    categories.parent.mkdir()
    categories.write_text("feature_categories: {global_saerch: {owner: a, description: b}}\n")
    done = run(site, "--select", "SEW017")
    assert done.stdout.startswith(
        "workers/base.py:10:5: SEW017 the feature_category 'global_search' of TeamWorker is not in"
    )
    assert "(did you mean 'global_saerch'?)" in done.stdout
    categories.write_text("feature_categories: [")
    assert run(site, "--select", "SEW017").returncode == 0


def test_lint_moved_class_is_found_by_the_manifest(tmp_path: Path):
    """The folder of the setting holds the manifest, which precedes all_queues.yml. Retired names give no finding."""
    write(tmp_path, {"shop/__init__.py": "", "shop/mail/__init__.py": "", "shop/mail/sending.py": worker()})
    files = {"redis.yml": "", "application.yml": "workers_module: shop\ngenerated_files: made\n"}
    write(tmp_path, {f"config/{name}": text for name, text in files.items()})

    def checked(**variables: str) -> tuple[int, str]:
        done = FORK_SERVER.run([str(ROOT / "scripts" / "lint_workers")], tmp_path, {**os.environ, **variables})
        assert not done.stderr
        return done.returncode, done.stdout

    assert checked()[0] == 0
    write(
        tmp_path,
        {"workers/released.yml": "workers: {MailWorker: {}}", "made/all_queues.yml": "- worker_name: MailWorker"},
    )
    status, text = checked()
    assert status == 1
    assert text.startswith(
        "shop/mail/sending.py:4:1: SEW032 the wire name of MailWorker is Mail::MailWorker, which made/all_q"
    )
    assert 'write wire_name = "MailWorker" to keep the name, or aliases = ("MailWorker",) to take the new one' in text
    assert checked(FRAMEWORK_GENERATED_FILES=str(tmp_path / "none"))[0] == 0
    assert checked(FRAMEWORK_RETIRED_WORKERS='{"MailWorker": "gone"}')[0] == 0
    assert checked(FRAMEWORK_GENERATED_FILES=str(tmp_path / "workers"))[1].count("SEW032") == 2

    released = {"made/released.yml": "workers: {Old::MailWorker: {place: shop.old.mail.MailWorker}}"}
    write(tmp_path, released)
    assert 'write wire_name = "Old::MailWorker" to keep the name' in checked()[1]
    write(tmp_path, {"shop/old/__init__.py": "", "shop/old/mail.py": worker()})
    assert checked()[0] == 0
    (tmp_path / "shop" / "old" / "mail.py").unlink()
    assert checked()[0] == 1
    write(tmp_path, {"made/released.yml": "workers: {Old::MailWorker: {}}\nretired: {Old::MailWorker: 2026-01-01}"})
    assert checked()[0] == 0
    write(tmp_path, {"made/released.yml": "[", "made/all_queues.yml": "- 1\n- {worker_name: [x]}\n"})
    assert checked()[0] == 0


def test_lint_hook_of_the_guide_runs(site: Path):
    page = (ROOT / "docs" / "reference" / "lint.md").read_text()
    text = re.search(r"```yaml file=\.pre-commit-config\.yaml\n(.*?)```", page, re.DOTALL)
    assert text is not None
    (repo,) = yaml.safe_load(text[1])["repos"]
    (hook,) = repo["hooks"]
    assert (repo["repo"], hook["language"]) == ("local", "system")
    assert re.match(hook["files"], "workers/mail.py")
    script, *arguments = hook["entry"].split()
    command = [str(Path(sys.executable).parent / script), *arguments, "workers/post.py", "workers/mail.py"]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("SEW001 MailWorker"), done.stderr) == (1, 1, "")
    assert "2 workers in 2 files: 1 finding" in done.stdout


def test_lint_checks_the_schedule_against_the_source(site: Path):
    (site / "workers" / "mail.py").write_text((site / "workers" / "post.py").read_text().replace("Post", "Mail"))
    (site / "config").mkdir()
    (site / "config" / "redis.yml").write_text("shards: {main: {url: embedded}}")
    entries = "{{a: {{cron: '@daily', class: {}, {}: once}}}}"
    (site / "config" / "schedule.yml").write_text(f"schedule: {entries.format('MialWorker', 'mised')}")
    done = run(site)
    assert done.returncode == 1
    keys = "cron, class, args, time_zone, missed, overlap, enabled, spread"
    assert done.stderr.splitlines() == [
        f"config/schedule.yml: schedule.a.mised: unknown key (did you mean 'missed'?); allowed: {keys}",
        "config/schedule.yml: schedule.a.class: no worker has the wire name 'MialWorker' (did you mean 'MailWorker'?)",
    ]
    # A part of the workers says nothing about the whole schedule.
    assert run(site, "workers/mail.py").stderr == ""
    (site / "config" / "schedule.yml").write_text(f"schedule: {entries.format('MailWorker', 'args: [1], missed')}")
    assert run(site).stderr == ""


REPORT = """
class ReportWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self, name: str, count: int = 1, *more: str) -> None: ...


class SweepWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self, days: float) -> None: ...
"""


@pytest.mark.parametrize(
    ("worker", "args", "fault"),
    [
        ("ReportWorker", "['a']", ""),
        ("ReportWorker", "['a', 2, 'b', 'c']", ""),
        ("ReportWorker", "[]", "ReportWorker: name is missing"),
        (
            "ReportWorker",
            "[3, true]",
            "ReportWorker: argument 'name' is 3, no str|ReportWorker: argument 'count' is True, no int",
        ),
        ("SweepWorker", "[7]", ""),
        ("SweepWorker", "[7, 8]", "SweepWorker: 2 arguments are given, and perform takes 1"),
    ],
)
def test_lint_checks_the_arguments_of_the_schedule(site: Path, worker: str, args: str, fault: str):
    """A boot refuses them: until then the deploy is done."""
    (site / "workers" / "mail.py").write_text(f"from framework import ApplicationWorker\n{REPORT}")
    (site / "config").mkdir()
    (site / "config" / "redis.yml").write_text("shards: {main: {url: embedded}}")
    entry = f"{{cron: '@daily', class: {worker}, args: {args}}}"
    (site / "config" / "schedule.yml").write_text(f"schedule: {{a: {entry}}}")
    expected = [f"config/schedule.yml: schedule.a.args: {one}" for one in fault.split("|") if one]
    assert run(site).stderr.splitlines() == expected
