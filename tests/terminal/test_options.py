"""Test wrong options of every command: one message with the nearest spelling, no output on stdout, no file written."""

import sys

import pytest
from click.testing import CliRunner

from framework.cli.main import main
from framework.cli.process_options import OWN_SLOTS, FileOptions, read_config_file
from framework.declare import registry
from framework.errors import ConfigurationError
from tests.tables import each_row

QUEUE_NAME = "a queue name is made of letters, digits and _ . : -, without a - in front"
JOBS = """
from framework import ApplicationWorker
class OneWorker(ApplicationWorker):
    feature_category = "not_owned"
    def perform(self): ...
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Create a folder with a configuration of two shards, and make it the working directory."""
    (tmp_path / "config").mkdir()
    shards = "shards: {main: {url: 'redis://127.0.0.1:1'}, second: {url: 'redis://127.0.0.1:1/1'}}"
    (tmp_path / "config" / "redis.yml").write_text(shards)
    (tmp_path / "optional_jobs.py").write_text(JOBS)
    (tmp_path / "no_jobs.py").write_text("import json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("optional_jobs", "no_jobs"):  # the process keeps one module per name
        monkeypatch.delitem(sys.modules, name, raising=False)
    with registry.isolated():
        yield tmp_path


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


RANGE = "0 is not in the range 1<=x<=10000."
SECONDS = "is not a number of seconds from 0 to 604,800"
MODULE = "must be the name of a module, for example workers or shop.jobs"
WHEN = "must be a name of ASCII letters, digits, _ and -, for example production or staging"

USAGE = [
    ("worker --concurency 3", "No such option '--concurency'. Did you mean '--concurrency'?"),
    ("worker -q a,0", "'0' in 'a,0' is not a weight: give a whole number from 1 up"),
    ("worker -q a,x", "'x' in 'a,x' is not a weight: give a whole number from 1 up"),
    ("worker -q a,", "'' in 'a,' is not a weight: give a whole number from 1 up"),
    ("worker -q a,2,3", "'2,3' in 'a,2,3' is not a weight: give a whole number from 1 up"),
    ("worker -q a,²", "'²' in 'a,²' is not a weight: give a whole number from 1 up"),
    *(
        (("worker", "-q", name), f"{name!r} is not a queue name: {QUEUE_NAME}; write NAME or NAME,WEIGHT")
        for name in (",3", "", " ", "a b", " a", "ünï", "a/b", "*", "a\n")
    ),
    ("worker -q a,2 -q a,3", "the queue 'a' is given twice, with 2 and with 3: give it once."),
    ("worker -q a -q b -q a,3", "the queue 'a' is given twice, with no weight and with 3: give it once."),
    ("worker -c 0", RANGE),
    ("worker -c 99999999", "99999999 is not in the range 1<=x<=10000."),
    ("worker -c 1.5", "'1.5' is not a valid integer"),
    ("worker -t -1", f"'-1' {SECONDS}"),
    ("worker -t nan", f"'nan' {SECONDS}"),
    ("worker -t inf", f"'inf' {SECONDS}"),
    ("worker -t soon", f"'soon' {SECONDS}"),
    (("worker", "-e", ""), f"'' {WHEN}"),
    ("worker --shard secnd", "no shard is named 'secnd' (did you mean 'second'?); config/redis.yml has: main, second"),
    (("worker", "--shard", ""), "no shard is named ''; config/redis.yml has: main, second"),
    ("worker -r ./optional_jobs.py", f"'./optional_jobs.py' {MODULE} (did you mean 'optional_jobs'?)"),
    ("worker -r shop/jobs", f"'shop/jobs' {MODULE} (did you mean 'shop.jobs'?)"),
    ("worker -r /etc/passwd", f"'/etc/passwd' {MODULE}"),
    ("worker -r ..jobs", f"'..jobs' {MODULE}"),
    (("worker", "-r", ""), f"'' {MODULE}"),
    ("worker -C none.yml", "File 'none.yml' does not exist."),
    ("worker -C config", "File 'config' is a directory."),
    ("worker default", "Got unexpected extra argument (default)"),
    ("worker -q", "Option '-q' requires an argument."),
    ("cluster", "Missing argument 'SELECTOR...'."),
    (("cluster", ""), f"group '': '' is not a queue name: {QUEUE_NAME}"),
    ("cluster a,,b", f"group 'a,,b': '' is not a queue name: {QUEUE_NAME}"),
    ("cluster a, --dryrun", f"group 'a,': '' is not a queue name: {QUEUE_NAME}"),
    (
        "cluster urgency=high",
        f"group 'urgency=high': 'urgency=high' is not a queue name: {QUEUE_NAME}; a query needs --queue-selector",
    ),
    (
        ("cluster", "a\nb"),
        f"is not a queue name: {QUEUE_NAME}; one argument is one group and must not contain a line break",
    ),
    ("cluster a,3", "group 'a,3': '3' looks like a weight, but a group has only names of queues"),
    ("cluster a,*", "group 'a,*': * selects every queue, so it must be the only name of the group"),
    ("cluster a --dryrun --list-queues", "--dryrun and --list-queues do not go together."),
    ("cluster a --min-concurrency 3 --max-concurrency 2", "--min-concurrency 3 is more than --max-concurrency 2."),
    ("worker --no-namespaces", "--no-namespaces belongs to -q and --capsule."),
    ("worker --only-capsules -q a", "--only-capsules and -q do not go together"),
    ("worker --only-capsules", "--only-capsules needs --capsule, or capsules in the file of -C"),
    ("worker --capsule default 1 a", "--capsule: 'default' is the capsule of the process's own queues"),
    ("worker --capsule slow 1 a --capsule slow 2 b", "--capsule: the capsule 'slow' is given twice"),
    ("worker --capsule slow 1 a,,b", "--capsule: '' is not a queue name"),
    ("worker --capsule slow 0 a", "0 is not in the range 1<=x<=10000"),
    (
        "cluster a --shard secnd",
        "no shard is named 'secnd' (did you mean 'second'?); config/redis.yml has: main, second",
    ),
    ("cluster a --shard secnd --dryrun", "no shard is named 'secnd' (did you mean 'second'?)"),
    ("cluster a --timeout nan", f"'nan' {SECONDS}"),
    ("cluster a --max-concurrency 99999999", "99999999 is not in the range 1<=x<=10000."),
    ("cluster a --max-concurrency 0", RANGE),
    ("jobs resume AWorker --rate 0", "'0' is no rate: give a number of jobs per second, or max"),
    ("jobs resume AWorker --rate inf", "'inf' is no rate: give a number of jobs per second, or max"),
    ("jobs clear mailers --rate fast --yes", "'fast' is no rate: give a number of jobs per second, or max"),
    ("cluster a --processes 1000", "1000 is not in the range 1<=x<=256."),
    ("cluster a --process 3", "No such option '--process'. Did you mean '--processes'?"),
    ("cluster a -r a/b", f"'a/b' {MODULE} (did you mean 'a.b'?)"),
    ("store strat", "No command is named 'strat' (did you mean 'start'?); there are: start, "),
    ("store start now", "Got unexpected extra argument (now)"),
    ("generate-queues --chek", "No such option '--chek'. (Did you mean one of: '--check', '--help'?)"),
    ("generate-queues optional_jobs", "Got unexpected extra argument (optional_jobs)"),
    ("generate-queues -r optional_jobs.py/", f"'optional_jobs.py/' {MODULE}"),
    ("route --explan", "No such option '--explan'. Did you mean '--explain'?"),
    ("route -r optional_jobs OneWroker", "there is no worker 'OneWroker' (did you mean 'OneWorker'?)"),
    ("attributes urgncy", "there is no attribute 'urgncy' (did you mean 'urgency'?)"),
    ("attributes --wrte", "No such option '--wrte'. Did you mean '--write'?"),
    ("attributes --check --docs nowhere", "nowhere is no folder; name the documentation with --docs."),
    ("retired Absent", "no class 'Absent' is retired"),
    ("workr", "No such command 'workr'. Did you mean 'worker'?"),
]


@each_row(("arguments", "message"), USAGE)
def test_commands_wrong_usage_status_2(project, arguments, message):
    before = files(project)
    ended = CliRunner().invoke(main, arguments.split() if isinstance(arguments, str) else arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert files(project) == before


@pytest.mark.parametrize(
    "command",
    [
        "worker",
        "cluster a",
        "store start",
        "store stop",
        "store status",
        "generate-queues",
        "generate-queues --check",
        "route",
        "retired",
        "check-compat",
    ],
)
def test_commands_invalid_configuration_status_78(project, command):
    (project / "config" / "redis.yml").write_text("shrds: {main: {url: embedded}}")
    before = files(project)
    ended = CliRunner().invoke(main, command.split())
    assert (ended.exit_code, ended.stdout) == (78, "")
    assert "config/redis.yml: shrds: unknown key (did you mean 'shards'?)" in ended.stderr
    assert files(project) == before


@pytest.mark.parametrize("command", ["generate-queues", "generate-queues --check", "route", "check-compat"])
@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("optional_jbos", "optional_jbos: no module of that name (did you mean 'optional_jobs'?)"),
        ("optional_jobs.py", "optional_jobs.py: no module of that name (did you mean 'optional_jobs'?)"),
        ("no_jobs", "no_jobs: no worker class is defined there: name the module of the workers with -r"),
    ],
)
def test_commands_modules_without_workers_status_78(project, command, module, message):
    from framework.declare import registry

    before = files(project)
    with registry.isolated():
        ended = CliRunner().invoke(main, [*command.split(), "-r", module])
    assert (ended.exit_code, ended.stdout) == (78, "")
    assert message in ended.stderr
    assert files(project) == before


def test_cluster_missing_module_starts_no_child(project):
    ended = CliRunner().invoke(main, ["cluster", "a", "-r", "optional_jbos"])
    assert (ended.exit_code, ended.stdout) == (78, "")
    assert "optional_jbos: no module of that name (did you mean 'optional_jobs'?)" in ended.stderr


def test_cluster_timeout_comes_from_the_settings(project, monkeypatch):
    (project / "config" / "application.yml").write_text("timeout: 7.5")

    def planned(*options):
        return CliRunner().invoke(main, ["cluster", "a", "--dryrun", *options]).stdout.split(" worker ")[1]

    assert planned() == "--shard main -t 7.5 -c 10 -q a\n"
    monkeypatch.setenv("FRAMEWORK_TIMEOUT", "8")
    assert planned() == "--shard main -t 8 -c 10 -q a\n"
    assert planned("--timeout", "0") == "--shard main -t 0 -c 10 -q a\n"


def test_store_without_folder_is_reported(project, monkeypatch):
    (project / "config" / "redis.yml").write_text("shards: {main: {url: embedded}}")
    monkeypatch.setenv("FRAMEWORK_VAR_DIR", "/proc/nowhere")
    ended = CliRunner().invoke(main, ["store", "start"])
    assert (ended.exit_code, ended.stdout) == (78, "")
    assert "/proc/nowhere/stores/main: its folder cannot be written" in ended.stderr


# --- the file of worker -C ------------------------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path):
    def of(content, environment="development"):
        of.path.write_text(content)
        return read_config_file(of.path, environment)

    of.path = tmp_path / "sidekiq.yml"
    return of


def test_config_file_in_sidekiq_form_is_read(read):
    text = "concurrency: 5\ntimeout: 8.5\nshard: s\nrequire: jobs\nqueues: [a, [b, 2], 'c,3', [d]]\nproduction: {concurrency: 7}\n"
    queues = (("a", 0), ("b", 2), ("c", 3), ("d", 0))
    wanted = FileOptions(concurrency=5, timeout=8.5, shard="s", queues=queues, require=("jobs",))
    assert read(text) == wanted
    assert read(text, "production").concurrency == 7
    for empty in ("", "---\n", "# nothing", "production:"):
        assert read(empty) == FileOptions()


def test_config_file_limits_of_sidekiq_limit_fetch_are_read(read):
    text = ":limits:\n  a: 5\n  :b: '2'\nprocess_limits: {a: 1}\nproduction: {limits: {c: 1}}\n"
    assert read(text) == FileOptions(limits={"a": 5, "b": 2}, process_limits={"a": 1})
    assert read(text, "production") == FileOptions(limits={"c": 1}, process_limits={"a": 1})


def test_config_file_ruby_symbols_are_read(read):
    text = ":concurrency: 5\n:queues:\n  - :a\n  - [b, 2]\n  - - :c\n    - 3\n:test:\n  :concurrency: 1\n"
    assert read(text) == FileOptions(concurrency=5, queues=(("a", 0), ("b", 2), ("c", 3)))
    assert read(text, "test").concurrency == 1


def test_config_file_other_sidekiq_keys_have_no_effect(read):
    text = ":max_retries: 3\n:verbose: true\n:scheduler: {x: 1}\nstaging: {concurrency: 2}\n"
    assert read(text) == FileOptions(
        ignored_keys=(
            "max_retries has no effect here: set max_retries in config/application.yml",
            "verbose has no effect here: set logging.level in config/application.yml",
            "scheduler is an unknown key and has no effect",
            "staging is an unknown key and has no effect",
        )
    )


def test_config_file_tag_and_labels_are_read(read):
    assert read(":tag: shop\n:labels: [a, b c]") == FileOptions(tag="shop", labels=("a", "b c"))
    assert read("labels: one").labels == ("one",)


@pytest.mark.parametrize("text", ["tag: 5", "tag: ''", 'labels: ["a\\u001b[2J"]', "labels: [a, []]"])
def test_config_file_unprintable_tag_is_refused(read, text):
    with pytest.raises(ConfigurationError, match="a text of 1 to 100 characters that can be printed"):
        read(text)


NO_QUEUE = "is not a queue: write NAME, or [NAME, WEIGHT] with a whole number from 1 on"
WHOLE = "must be a whole number from 1 to 10,000, not"


@each_row(
    ("content", "key", "message"),
    [
        ("[", "", "line 2, column 1: did not find expected node content"),
        ("\ta: 1", "", "a tab does not indent in YAML: use spaces"),
        (
            "- a",
            "",
            "must hold keys and values; keys: concurrency, timeout, shard, queues, capsules, limits, process_limits, blocking",
        ),
        ("a: <%= 5 %>", "", "has ERB (<% %>), which the framework does not evaluate"),
        (
            "concurrency: 1\nconcurrency: 2",
            "",
            "line 2, column 1: the key 'concurrency' occurs for the second time",
        ),
        ("concurrency: 1\n:concurrency: 2", "concurrency", "occurs twice, with and without a leading colon"),
        (
            ":concurency: 1",
            "concurency",
            "unknown key (did you mean 'concurrency'?); keys: concurrency, timeout, shard",
        ),
        ("prodution: {}", "prodution", "unknown key (did you mean 'production'?)"),
        ("max_retry: 1", "max_retry", "unknown key (did you mean 'max_retries'?)"),
        ("production: 5", "production", "must hold keys and values"),
        ("production: {timeout: x}", "production.timeout", "must be a number from 0 to 604,800, not 'x'"),
        ("production: {concurency: 1}", "production.concurency", "unknown key (did you mean 'concurrency'?)"),
        *((f"concurrency: {wrong}", "concurrency", WHOLE) for wrong in ("x", "0", "true", "~", "1.5", "10001", "[1]")),
        *((f"timeout: {wrong}", "timeout", "604,800, not") for wrong in ("-1", ".nan", ".inf", "~", "true")),
        ("queues:", "queues", f"null {NO_QUEUE}"),
        ("queues: []", "queues", "must name at least one queue"),
        ("queues: {a: 1}", "queues", f'{{"a": 1}} {NO_QUEUE}'),
        ("queues: [{2020-01-01: x}]", "queues", f"{{datetime.date(2020, 1, 1): 'x'}} {NO_QUEUE}"),
        (f"concurrency: 0x{'f' * 4_000}", "concurrency", f"{WHOLE} <a very long number>"),
        ("queues: [[a, 0], 7]", "queues", f'["a", 0] {NO_QUEUE}; 7 {NO_QUEUE}'),
        ("queues: [[a, true]]", "queues", f'["a", true] {NO_QUEUE}'),
        ("queues: [['a,2', 3]]", "queues", f'["a,2", 3] {NO_QUEUE}'),
        ("queues: ['a b']", "queues", f"'a b' is not a queue name: {QUEUE_NAME}"),
        ("queues: [['a b', 1]]", "queues", f"'a b' is not a queue name: {QUEUE_NAME}"),
        ("queues: ['a,x']", "queues", "'x' in 'a,x' is not a weight"),
        ("queues: [[a, 2], a]", "queues", "the queue 'a' is given twice, with 2 and with no weight: give it once"),
        ("shard: 5", "shard", "must be the name of a shard, not 5"),
        ("require: ./app.rb", "require", f"{MODULE}, not './app.rb'"),
        ("require: [a, 5]", "require", f"{MODULE}, not 5"),
        ("capsules: [slow]", "capsules", "must map names to their queues, for example {slow: {concurrency: 1"),
        ("capsules: {slow: {}}", "capsules", "slow: has no queues: name those that it serves"),
        ("capsules: {slow: {queues: ['a b']}}", "capsules", f"slow: 'a b' is not a queue name: {QUEUE_NAME}"),
        ("capsules: {slow: {queues: a, concurency: 1}}", "capsules", "slow: unknown key 'concurency' (did you mean"),
        ("capsules: {slow: {queues: a, concurrency: 0}}", "capsules", f"slow: concurrency: {WHOLE} 0"),
        (
            "capsules: {a/b: {queues: a}}",
            "capsules",
            "'a/b' is not a name of a capsule: use 1 to 40 of A-Z a-z 0-9 _ -",
        ),
        ("queues: a\ncapsules: {default: {queues: b}}", "capsules", "default: queues is given outside of capsules too"),
        ("limits: [a]", "limits", "must map queue names to numbers"),
        ("limits: {a: 0}", "limits", "a: must be a whole number from 1 to 1,000,000, not 0"),
        ("process_limits: {a b: 1}", "process_limits", "a b"),
    ],
)
def test_config_file_invalid_value_names_file_and_key(read, content, key, message):
    with pytest.raises(ConfigurationError) as caught:
        read(content)
    (problem,) = caught.value.problems
    assert (problem.file, problem.key) == (str(read.path), key)
    assert message in problem.message


def test_config_file_capsules_have_sidekiqs_form(read):
    found = read(
        ":concurrency: 7\n:capsules:\n  :slow:\n    :concurrency: 1\n    :queues: [a, [b, 2]]\n  more: {queues: c}"
    )
    assert found.capsules == (("slow", (("a", 0), ("b", 2)), 1, False), ("more", (("c", 0),), OWN_SLOTS, False))
    own = read("capsules: {default: {concurrency: 3, queues: [a]}, slow: {queues: b}}")
    assert (own.queues, own.concurrency, [one.name for one in own.capsules]) == ((("a", 0),), 3, ["slow"])


def test_config_file_with_several_errors_lists_all(read):
    with pytest.raises(ConfigurationError) as caught:
        read("concurrency: x\nqueues: [5]\ntest: {timeout: x}\nproduction: {shrad: s}")
    assert [problem.key for problem in caught.value.problems] == [
        "concurrency",
        "queues",
        "test.timeout",
        "production.shrad",
    ]
