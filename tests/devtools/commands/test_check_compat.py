"""Test scripts/check_compat: store a release, and compare the next one with it, by hand and in CI."""

import json
import subprocess

import jsonschema
import pytest
import yaml

from framework.devtools.compat.findings import CHANGE, DROP_DEFAULT
from framework.devtools.compat.manifest import manifest_schema
from tests.harness import ROOT

HEAD = "from framework import ApplicationWorker\n\n\n"
IMPORT = """class ImportWorker(ApplicationWorker):
    feature_category = "not_owned"
    version = {version}

    {methods}
"""
RELEASED = {"version": 2, "methods": "def perform(self, path: str, sheets: list[int] | None = None) -> None: ..."}
UNSAFE = {"version": 2, "methods": "def perform(self, path: str, project_id: int) -> None: ..."}
UNVERSIONED = {"version": 3, "methods": UNSAFE["methods"]}
SAFE = {
    "version": 3,
    "methods": f"{UNSAFE['methods']}\n\n    {RELEASED['methods'].replace('perform', 'perform_v2')}",
}
MISSING = """\
1 problem in the configuration:
  - workers/released.yml: does not exist, so no release is known. Write the first with `scripts/check_compat --release NAME` \
and commit it
"""


def write(site, facts, *more):
    (site.folder / "office.py").write_text(HEAD + "\n\n".join([IMPORT.format(**facts), *more]))


def check(site, *arguments):
    return site.run(str(ROOT / "scripts" / "check_compat"), "-r", "office", *arguments)


def result_of(done):
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture
def released(site):
    write(site, RELEASED)
    done = check(site, "--release", "4.1")
    assert result_of(done) == (0, ["wrote workers/released.yml", "wrote workers/released.schema.json"], "")
    return site


@pytest.fixture
def day(released):
    return yaml.safe_load((released.folder / "workers" / "released.yml").read_text())["day"]


def test_check_compat_without_manifest_names_the_command(site):
    write(site, RELEASED)
    done = check(site)
    assert (done.returncode, done.stdout, done.stderr) == (78, "", MISSING)
    assert not (site.folder / "workers").exists()


def test_manifest_has_one_parameter_per_line(released, day):
    manifest = released.folder / "workers" / "released.yml"
    text = manifest.read_text()
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "release: '4.1'",
        f"day: {day}",
        "workers:",
        "  ImportWorker:",
        "    place: office.ImportWorker",
        "    version: 2",
        "    retry: true",
        "    queue: import",
        "    shard: main",
        "    perform:",
        "    - {name: path, type: {type: string}}",
        "    - {name: sheets, type: {anyOf: [{type: array, items: {type: integer}}, {type: 'null'}]}, optional: true}",
        "retired: {}",
        "former_queues: {}",
        "accepted: {}",
    ]
    schema = json.loads((released.folder / "workers" / "released.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(yaml.safe_load(text), default=str)), schema)
    assert check(released, "--release", "4.1").returncode == 0
    assert manifest.read_text() == text


def test_unsafe_change_fails_with_advice_and_safe_passes(released, day):
    write(released, UNSAFE)
    assert result_of(check(released)) == (
        1,
        [
            "office.ImportWorker.perform: project_id no longer has a default: jobs without it may be in flight [default-dropped]",
            f"  step: {DROP_DEFAULT}",
            "  write: def perform(self, path: str, sheets: list[int] | None = None) -> None: ...",
            '         or, when no such job is left: scripts/check_compat --accept ImportWorker --reason "..."',
            "office.ImportWorker.perform: project_id takes int, and jobs hold list[int] | None [type-changed]",
            f"  step: {CHANGE}",
            "  write: version = 3",
            "         def perform(self, path: str, project_id: int) -> None: ...",
            "         def perform_v2(self, path: str, sheets: list[int] | None = None) -> None: ...",
            f"1 worker against release 4.1 of {day}: 2 findings, 0 changes",
        ],
        "",
    )
    before = (released.folder / "workers" / "released.yml").read_bytes()
    refused = check(released, "--release", "4.2")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("Nothing was written: jobs of release 4.1 would break.\n")
    assert (released.folder / "workers" / "released.yml").read_bytes() == before
    write(released, UNVERSIONED)
    status, lines, _ = result_of(check(released))
    assert (status, lines[0].endswith("[no-handler]")) == (1, True)
    write(released, SAFE)
    status, lines, errors = result_of(check(released))
    assert (status, errors) == (0, "")
    assert lines[0] == (
        "office.ImportWorker: version 3, not 2: its jobs wait until a process of this release fetches them [change]"
    )
    assert lines[-1].endswith("0 findings, 1 change")


def test_check_compat_without_queues_yml_serves_class_queues(site):
    """A worker process does the same: the alias of a renamed class keeps its queue, and `default` is not served."""
    write(site, RELEASED)
    assert check(site, "--release", "4.1").returncode == 0
    office = (site.folder / "office.py").read_text()
    renamed = office.replace("class ImportWorker", "class LoadWorker").replace(
        "version = 2", 'version = 2\n    aliases = ("ImportWorker",)'
    )
    (site.folder / "office.py").write_text(renamed)
    status, lines, errors = result_of(check(site))
    assert "[queue-unserved]" not in "\n".join(lines)
    assert (status, errors) == (0, "")


def test_check_compat_json_has_every_finding(released):
    write(released, UNVERSIONED)
    done = check(released, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    message = json.loads(done.stdout)
    assert (message["release"], message["workers"], message["findings"], message["changes"]) == ("4.1", 1, 1, 0)
    finding = message["found"][0]
    assert (finding["code"], finding["fails"], finding["worker"]) == ("no-handler", True, "ImportWorker")
    assert finding["place"] == "office.ImportWorker.version"
    assert finding["write"] == ["def perform_v2(self, path: str, sheets: list[int] | None = None) -> None: ..."]


def test_check_compat_accept_stores_worker_and_reason(released):
    write(released, UNSAFE)
    done = check(released, "--accept", "ImportWorker", "--reason", "no import was pushed since May")
    assert done.returncode == 0
    assert check(released).returncode == 0
    content = yaml.safe_load((released.folder / "workers" / "released.yml").read_text())
    assert content["accepted"] == {"ImportWorker": "no import was pushed since May"}
    unknown = check(released, "--accept", "ImportWorkr", "--reason", "x")
    assert result_of(unknown) == (2, [], "there is no worker 'ImportWorkr' (did you mean 'ImportWorker'?)\n")


def test_check_compat_former_queue_is_still_served(site):
    def write_routed(queue):
        write(site, RELEASED | {"methods": f'queue = "{queue}"\n\n    {RELEASED["methods"]}'})

    def generated():
        assert site.run(str(ROOT / "scripts" / "generate_queues"), "-r", "office").returncode == 0
        return {name for name, _ in yaml.safe_load((site.folder / "config" / "queues.yml").read_text())["queues"]}

    write_routed("quick")
    assert generated() == {"import", "quick"}
    assert check(site, "--release", "4.1").returncode == 0
    write_routed("slow")
    site.write("queues.yml", "queues: [[slow, 1]]")
    status, lines, _ = result_of(check(site))
    assert (status, lines[0].endswith("[queue-unserved]")) == (1, True)
    assert generated() == {"import", "quick", "slow"}
    status, lines, _ = result_of(check(site, "--release", "4.2"))
    assert status == 0
    # The processes of release 4.2 must empty the former queue.
    assert generated() == {"import", "quick", "slow"}
    assert result_of(check(site))[1][-1].endswith(": 0 findings, 0 changes")


def test_check_compat_against_a_file_or_a_git_revision(released):
    def git(*arguments):
        words = ["git", "-C", str(released.folder), "-c", "user.name=a", "-c", "user.email=a@b.invalid", *arguments]
        subprocess.run(words, check=True, capture_output=True)

    git("init")
    git("add", "workers")
    git("commit", "-m", "4.1")
    kept = released.folder / "kept.yml"
    kept.write_bytes((released.folder / "workers" / "released.yml").read_bytes())
    write(released, SAFE)
    assert check(released, "--release", "4.2").returncode == 0
    assert result_of(check(released))[1][-1].endswith(": 0 findings, 0 changes")
    for against in ("kept.yml", "HEAD"):
        status, lines, _ = result_of(check(released, "--against", against))
        assert status == 0
        assert "against release 4.1 of" in lines[-1]
        assert lines[-1].endswith(": 0 findings, 1 change")
    wrong = check(released, "--against", "v9")
    assert wrong.returncode == 2
    assert "--against v9: no such file, and no manifest in a revision of that name" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("release: [", "line 2, column 1"),
        ("release: '1'\nday: soon\n", "day: "),
        ("release: '1'\nday: 2026-01-01\nworkers: {A: {versoin: 1}}\n", "workers.A.versoin: "),
        (
            "release: '1'\nday: 2026-01-01\nworkers: {A: {perform: [{name: a, type: {type: int}}]}}\n",
            "workers.A.perform.0.type.type: ",
        ),
    ],
    ids=["no YAML", "no day", "a slip", "no type"],
)
def test_check_compat_invalid_manifest_status_78(site, text, message):
    write(site, RELEASED)
    (site.folder / "workers").mkdir()
    (site.folder / "workers" / "released.yml").write_text(text)
    done = check(site)
    assert (done.returncode, done.stdout) == (78, "")
    assert f"workers/released.yml: {message}" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--release", "1", "--accept", "A", "--reason", "b"),
        ("--accept", "A"),
        ("--release", ""),
        ("--reason", "b"),
        ("--json", "--release", "1"),
        ("x",),
    ],
)
def test_check_compat_conflicting_options_are_refused(released, arguments):
    assert check(released, *arguments).returncode == 2


def test_check_compat_unimportable_workers_are_reported(released):
    (released.folder / "office.py").write_text("import nowhere_to_be_found\n")
    done = check(released)
    assert (done.returncode, done.stdout) == (78, "")
    assert "office: it imports 'nowhere_to_be_found', which is not installed" in done.stderr


def test_committed_manifest_fits_the_committed_workers(site):
    done = site.run(str(ROOT / "scripts" / "check_compat"), FRAMEWORK_CONFIG_DIR=str(ROOT / "config"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    schema = json.loads((ROOT / "workers" / "released.schema.json").read_text())
    assert schema == json.loads(json.dumps(manifest_schema()))


@pytest.mark.campaign
def test_check_compat_compares_a_thousand_workers(site):
    methods = "def perform(self, a: int, b: str = 'x', rows: list[int] | None = None) -> None: ..."
    classes = [IMPORT.format(version=1, methods=methods).replace("ImportWorker", f"Job{n}Worker") for n in range(1_000)]
    (site.folder / "office.py").write_text(HEAD + "\n\n".join(classes))
    assert check(site, "--release", "1").returncode == 0
    done = check(site)
    assert done.stdout.startswith("1000 workers against release 1 of"), done.stderr
