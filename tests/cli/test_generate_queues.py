"""scripts/generate_queues: writes two files, and with --check says what differs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = """
from framework import ApplicationWorker


class IndexWorker(ApplicationWorker):
    feature_category = "search"
    queue_namespace = "search"

    def perform(self, project_id: int) -> None: ...


class MailWorker(ApplicationWorker):
    feature_category = "search"
    urgency = "high"
    weight = 3

    def perform(self, user_id: int) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text("shards: {main: {url: embedded}}")
    (tmp_path / "config" / "routing.yml").write_text("routing_rules: [['urgency=high', urgent], ['*', default]]")
    (tmp_path / "shop.py").write_text(WORKERS)
    return tmp_path


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "generate_queues"
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=cwd,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_writes_both_files_and_finds_them_fresh(project: Path):
    written = run(project, "-r", "shop")
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout.splitlines() == ["wrote workers/all_queues.yml", "wrote config/queues.yml"]
    entries = yaml.safe_load((project / "workers/all_queues.yml").read_text())
    assert [(entry["name"], entry["worker_name"]) for entry in entries] == [
        ("search:index", "IndexWorker"),
        ("mail", "MailWorker"),
    ]
    queues = yaml.safe_load((project / "config/queues.yml").read_text())
    assert queues == {"queues": [["default", 1], ["mail", 3], ["search", 1], ["urgent", 3]]}
    before = (project / "workers/all_queues.yml").read_bytes()
    assert run(project, "-r", "shop", "--check").returncode == 0
    run(project, "-r", "shop")
    assert (project / "workers/all_queues.yml").read_bytes() == before
    assert not list(project.glob("*/*.tmp"))


def test_check_lists_missing_surplus_and_changed(project: Path):
    run(project, "-r", "shop")
    text = WORKERS.replace("IndexWorker", "SearchWorker").replace("weight = 3", "weight = 5")
    (project / "shop.py").write_text(text)
    checked = run(project, "-r", "shop", "--check")
    assert checked.returncode == 1
    assert checked.stderr.splitlines() == [
        "workers/all_queues.yml: missing SearchWorker",
        "workers/all_queues.yml: surplus IndexWorker",
        "workers/all_queues.yml: changed MailWorker: weight is 3 in the file, 5 in the class",
        "config/queues.yml: changed mail: weight 3, not 5",
        "config/queues.yml: changed urgent: weight 3, not 5",
        "Run scripts/generate_queues and commit the files.",
    ]


def test_check_finds_absent_broken_and_edited_files(project: Path):
    checked = run(project, "-r", "shop", "--check")
    assert checked.returncode == 1
    assert "workers/all_queues.yml: does not exist" in checked.stderr
    run(project, "-r", "shop")
    file = project / "workers/all_queues.yml"
    file.write_text("# mine\n" + file.read_text())
    assert "not as generated" in run(project, "-r", "shop", "--check").stderr
    file.write_text("- {a: [")
    assert "workers/all_queues.yml: line 2, column 1" in run(project, "-r", "shop", "--check").stderr
    file.write_text("a: 1")
    assert "no list of workers" in run(project, "-r", "shop", "--check").stderr


def test_two_workers_of_one_generated_queue_are_refused(project: Path):
    with (project / "shop.py").open("a") as file:
        file.write(WORKERS.replace("MailWorker", "Mail").replace("IndexWorker", "OtherWorker"))
    refused = run(project, "-r", "shop")
    assert refused.returncode == 1
    assert "Mail and MailWorker have the same generated queue mail" in refused.stderr


def test_configuration_errors_end_with_78(project: Path):
    missing = run(project, "-r", "no_such_module")
    assert missing.returncode == 78
    assert "no_such_module: no module of that name" in missing.stderr
    (project / "config" / "routing.yml").write_text("routing_rules: [['urgency=hihg', urgent]]")
    wrong = run(project, "-r", "shop")
    assert wrong.returncode == 78
    assert "did you mean 'high'" in wrong.stderr
    assert "^ character 9" in wrong.stderr
    assert not (project / "workers").exists()


def test_the_committed_files_are_fresh(tmp_path: Path):
    del tmp_path
    checked = run(ROOT, "--check")
    assert checked.returncode == 0, checked.stderr


def test_route_explains(project: Path):
    script = ROOT / "scripts" / "route"
    command = [sys.executable, str(script), "MailWorker", "--explain", "-r", "shop"]
    shown = subprocess.run(command, cwd=project, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert shown.stdout.splitlines() == [
        "MailWorker: queue urgent on shard main (rule urgency=high)",
        "  decides   urgency=high  (urgency is high)",
        "  too late  *  (matches every worker)",
    ]
    command[2] = "MailWorkr"
    unknown = subprocess.run(command, cwd=project, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (unknown.returncode, unknown.stderr) == (2, "there is no worker 'MailWorkr' (did you mean 'MailWorker'?)\n")
    shutil.rmtree(project / "config")
