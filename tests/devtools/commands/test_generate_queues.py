"""Test scripts/generate_queues: it writes files, ``--check`` lists differences, ``--explain`` gives reasons."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.fork_server import FORK_SERVER

ROOT = Path(__file__).resolve().parents[3]
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


SCRIPT = str(ROOT / "scripts" / "generate_queues")


def run(cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return FORK_SERVER.run([SCRIPT, *arguments], cwd, {**os.environ, **env})


def run_cold(cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new interpreter, as hash seed and locale are fixed at its start."""
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_generate_queues_files_pass_its_check(project: Path):
    written = run(project, "-r", "shop")
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout.splitlines() == [
        "wrote workers/all_queues.yml",
        "wrote workers/all_queues.schema.json",
        "wrote config/queues.yml",
    ]
    entries = yaml.safe_load((project / "workers/all_queues.yml").read_text())
    assert [(entry["name"], entry["worker_name"]) for entry in entries] == [
        ("search:index", "IndexWorker"),
        ("mail", "MailWorker"),
    ]
    queues = yaml.safe_load((project / "config/queues.yml").read_text())
    assert queues == {"queues": [["default", 1], ["mail", 3], ["search", 1], ["urgent", 3]]}
    schema = json.loads((project / "workers/all_queues.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(entries)
    before = (project / "workers/all_queues.yml").read_bytes()
    assert run(project, "-r", "shop", "--check").returncode == 0
    run(project, "-r", "shop")
    assert (project / "workers/all_queues.yml").read_bytes() == before
    assert not list(project.glob("*/*.tmp"))


def test_generate_queues_check_lists_all_differences(project: Path):
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


def test_generate_queues_check_finds_invalid_files(project: Path):
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
    assert "not a list of workers" in run(project, "-r", "shop", "--check").stderr


def test_generate_queues_check_covers_the_schema(project: Path):
    run(project, "-r", "shop")
    file = project / "workers/all_queues.schema.json"
    (project / "config" / "feature_categories.yml").write_text("feature_categories: {search: {owner: team}}")
    stale = run(project, "-r", "shop", "--check")
    assert (stale.returncode, stale.stderr.splitlines()[0]) == (
        1,
        "workers/all_queues.schema.json: holds the right entries, but not as generated (order, layout or comments)",
    )
    file.unlink()
    assert "workers/all_queues.schema.json: does not exist" in run(project, "-r", "shop", "--check").stderr


def test_generate_queues_shared_generated_queue_is_refused(project: Path):
    with (project / "shop.py").open("a") as file:
        file.write(WORKERS.replace("MailWorker", "Mail").replace("IndexWorker", "OtherWorker"))
    refused = run(project, "-r", "shop")
    assert refused.returncode == 1
    assert "Mail and MailWorker have the same generated queue mail" in refused.stderr


def test_generate_queues_invalid_configuration_status_78(project: Path):
    missing = run(project, "-r", "no_such_module")
    assert missing.returncode == 78
    assert "no_such_module: no module of that name" in missing.stderr
    (project / "config" / "routing.yml").write_text("routing_rules: [['urgency=hihg', urgent]]")
    wrong = run(project, "-r", "shop")
    assert wrong.returncode == 78
    assert "did you mean 'high'" in wrong.stderr
    assert "^ character 9" in wrong.stderr
    assert not (project / "workers").exists()


def test_committed_queue_files_are_current(tmp_path: Path):
    del tmp_path
    checked = run(ROOT, "--check")
    assert checked.returncode == 0, checked.stderr


MANY = """
from framework import ApplicationWorker


class {name}(ApplicationWorker):
    feature_category = "search"
    queue_namespace = "{namespace}"
    urgency = "{urgency}"
    tags = ("z", "a", "m")

    def perform(self) -> None: ...
"""


def test_generate_queues_output_ignores_order_seed_locale(project: Path):
    names = [f"W{number}Worker" for number in range(12)]
    for number, name in enumerate(names):
        urgency = ("high", "low", "throttled")[number % 3]
        (project / f"m{number}.py").write_text(MANY.format(name=name, namespace=f"n{number % 4}", urgency=urgency))
    modules = [part for number in range(12) for part in ("-r", f"m{number}")]
    backwards = [part for number in reversed(range(12)) for part in ("-r", f"m{number}")]
    written = set()
    for order, seed, locale in ((modules, "0", "C"), (backwards, "4242", "tr_TR.UTF-8")):
        done = run_cold(project, *order, PYTHONHASHSEED=seed, LC_ALL=locale, LANG=locale, PYTHONUTF8="0")
        assert done.returncode == 0, done.stderr
        files = ("workers/all_queues.yml", "workers/all_queues.schema.json", "config/queues.yml")
        written.add(tuple((project / file).read_bytes() for file in files))
        for file in files:
            (project / file).unlink()
    assert len(written) == 1


@pytest.mark.campaign
def test_generate_queues_reader_sees_only_whole_files(project: Path):
    run(project, "-r", "shop")
    file = project / "workers/all_queues.yml"
    fresh = file.read_text()
    old = "# an older file\n" + fresh * 200
    file.write_text(old)
    writers = [
        subprocess.Popen([sys.executable, SCRIPT, "-r", "shop"], cwd=project, stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    found = set()
    while any(writer.poll() is None for writer in writers):
        found.add(file.read_text())
    assert {writer.returncode for writer in writers} == {0}
    assert found <= {old, fresh}
    assert file.read_text() == fresh
    assert not list(project.glob("*/*.tmp"))


def test_generate_queues_unwritable_folder_is_reported(project: Path):
    (project / "workers").write_text("a file is in the way")
    refused = run(project, "-r", "shop")
    assert refused.returncode == 78
    assert "generated_files: must be the path of a folder" in refused.stderr
    assert "workers is a file" in refused.stderr


EXPLAINED = """
from framework import ApplicationWorker


class Base(ApplicationWorker, abstract=True):
    feature_category = "search"
    status_expiration = 5


class AWorker(Base):
    queue_namespace = "mix"
    idempotent = True

    def perform(self) -> None: ...


class BWorker(Base):
    queue_namespace = "mix"
    wire_name = "Some::Other"
    weight = 2
    concurrency_limit = lambda: 3

    def perform(self) -> None: ...


class CWorker(Base):
    queue_namespace = "even"
    retry_queue = "even:later"

    def perform(self) -> None: ...


class DWorker(Base):
    urgency = "high"

    def perform(self) -> None: ...
"""


def explain(project: Path, name: str) -> list[str]:
    (project / "config" / "application.yml").write_text("namespace_weights: {even: 4}")
    (project / "shop.py").write_text(EXPLAINED)
    done = run(project, "-r", "shop", "--explain", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (project / "workers").exists()
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_generate_queues_explain_names_source_of_each_fact(project: Path):
    made = "made from the wire name: without the suffix Worker, underscored"
    differently = "a line of its own, as the workers of mix do not weigh the same"
    lines = explain(project, "AWorker")
    assert lines[0] == "AWorker is shop.AWorker"
    for line in (
        f"name mix:a {made}, behind its queue_namespace and a colon",
        "worker_name AWorker made from the place of the class: shop.AWorker",
        "feature_category search declared by shop.Base",
        "urgency low default",
        "weight 1 by urgency low; the class declares no weight, nor has namespace_weights mix",
        "deduplicate until_executing follows from idempotent = True, declared by shop.AWorker",
        "status_expiration 5 declared by shop.Base",
        "[default, 4] serves default (its jobs go there, on shard main (rule *)): a line of its own",
        f"[mix:a, 1] serves mix:a (its generated name): {differently}: AWorker 1, Some::Other 2",
    ):
        assert line in lines
    lines = explain(project, "Some::Other")
    for line in (
        "worker_name Some::Other declared as its wire_name",
        "weight 2 declared by shop.BWorker",
        "concurrency_limit computed declared by shop.BWorker",
    ):
        assert line in lines
    lines = explain(project, "CWorker")
    for line in (
        "weight 4 by the setting namespace_weights: even; the class declares no weight",
        "[even, 4] serves even:c (its generated name): in the line of its namespace, as all workers of it weigh 4",
        "[even, 4] serves even:later (its retries go there): in the line of the namespace even",
    ):
        assert line in lines
    lines = explain(project, "DWorker")
    assert "weight 3 by urgency high; the class declares no weight" in lines
    assert "[d, 3] serves d (its generated name): a line of its own, as the worker has no namespace" in lines


def test_generate_queues_explain_names_owner_of_alias_queue(project: Path):
    (project / "shop.py").write_text(WORKERS.replace("weight = 3", "aliases = ('Post::OldWorker',)"))
    done = run(project, "-r", "shop", "--explain", "MailWorker")
    line = "[post_old, 3] serves post_old (jobs of its alias Post::OldWorker may wait there): a line of its own"
    assert line in [one.strip() for one in done.stdout.splitlines()]


def test_generate_queues_keeps_queues_of_retired_classes(project: Path):
    """The queue may still hold jobs of the class, which processes drop and count."""
    retired = {
        "FRAMEWORK_RETIRED_WORKERS": '{"Old::FaxWorker": "gone", "Search::Worker": "gone", "MailWorker2": "gone"}'
    }
    assert run(project, "-r", "shop", **retired).returncode == 0
    found = yaml.safe_load((project / "config" / "queues.yml").read_text())["queues"]
    assert found == [
        *(["default", 1], ["mail", 3], ["mail_worker2", 1], ["old_fax", 1], ["search", 1], ["search_worker", 1]),
        ["urgent", 3],
    ]
    assert run(project, "-r", "shop", "--check", **retired).returncode == 0
    assert "surplus old_fax" in run(project, "-r", "shop", "--check").stderr


def test_generate_queues_unknown_worker_suggests_nearest(project: Path):
    unknown = run(project, "-r", "shop", "--explain", "MailWorkr")
    assert (unknown.returncode, unknown.stderr) == (2, "there is no worker 'MailWorkr' (did you mean 'MailWorker'?)\n")
    both = run(project, "-r", "shop", "--explain", "MailWorker", "--check")
    assert both.returncode == 2
    assert "do not go together" in both.stderr
