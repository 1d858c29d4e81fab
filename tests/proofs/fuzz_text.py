"""Targets: text written by people: routing queries, configuration files, variables, options of commands."""

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

from framework.all_settings import load
from framework.cli.process_options import read_config_file
from framework.errors import ConfigurationError, QueryError
from framework.route.query import ATTRIBUTES, parse
from framework.settings.files import YamlError, parse_yaml
from framework.settings.urls import check_redis_url, mask_secrets
from framework.terminal.options import read_queue
from framework.types import QUEUE_NAME
from tests.proofs.fuzz_inputs import mutate, mutate_text, replace_atoms
from tests.proofs.fuzz_target import Target, expect

_QUERIES = (
    b"*",
    b"urgency=high",
    b"resource_boundary!=cpu",
    b"tags!=special,high|urgency=low,high",
    b"urgency=high&resource_boundary!=cpu|tags=special,other",
    b"worker_name=Fuzz::NightlyWorker|name=reports:nightly&queue_namespace!=cronjob",
    b"has_external_dependencies=true&feature_category=team,not_owned",
)
_VALUES: Mapping[str, tuple[str, ...]] = {
    "urgency": ("high", "low", "throttled"),
    "resource_boundary": ("cpu", "memory", "unknown"),
    "has_external_dependencies": ("true", "false"),
}

_FILES: Mapping[str, bytes] = {
    "redis.yml": b"shards:\n  main: {url: 'redis://127.0.0.1:6379/0', protocol: 3}\n  fast:\n    sentinels: [10.0.0.7:26379]\n"
    b"    sentinel_name: mymaster\n    password: secret\n    tls: false\n",
    "routing.yml": b"routing_rules:\n  - ['urgency=high', urgent, fast]\n  - ['tags=a|tags=b', null]\n  - ['*', default]\n",
    "queues.yml": b"queues:\n  - [urgent, 3]\n  - default\n",
    "feature_categories.yml": b"feature_categories:\n  team: {owner: Team A, description: what it does}\n",
    "application.yml": b"concurrency: 20\ntimeout: 12.5\nlogging: {level: info, jobs: true}\ndead:\n  max_jobs: 100\n"
    b"  timeout_days: 1\nsize_limit: {mode: track, limit: 0}\nretired_workers:\n  Old::Worker: gone since 4.2\n"
    b"namespace_weights: {mailers: 2}\nstrict_arguments: off\npoll_interval: 0.5\nworkers_module: [workers]\n",
}  # fmt: skip
_VARIABLES: Mapping[str, bytes] = {
    "REDIS_URL": b"redis://:secret@127.0.0.1:6379/0",
    "FRAMEWORK_CONCURRENCY": b"10",
    "FRAMEWORK_SHARDS": b'{"main":{"url":"embedded"}}',
    "FRAMEWORK_SHARDS__FAST__URL": b"redis://h:1/0",
    "FRAMEWORK_LOGGING__LEVEL": b"info",
    "FRAMEWORK_QUEUES": b'[["default",1],"low"]',
    "FRAMEWORK_WORKERS_MODULE": b"workers,shop.jobs",
    "FRAMEWORK_ENV": b"test",
    "SENTRY_DSN": b"https://key@host/1",
}
_YAML = (
    *_FILES.values(),
    b"a: &x [1, 2]\nb: *x\nc: {<<: {d: 1}}\n",
    (b"a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\n"
    b"d: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: [*d, *d, *d, *d, *d, *d, *d, *d]\n"),
    b"- 2024-01-01\n- 1e3\n- 0x1F\n- 190:20:30\n- ~\n- 'it''s'\n- \"\\u00e9\"\n- |\n  block\n- >-\n  folded\n",
)  # fmt: skip
_SIDEKIQ = (
    b":concurrency: 5\n:queues:\n  - [critical, 2]\n  - default\nproduction:\n  :concurrency: 10\n:timeout: 8\n:require: ./app\n",
    b"queues: [a, [b, 3]]\ncapsules: {one: {concurrency: 1}}\nmax_retries: 3\nshard: main\n",
)
_OPTIONS = (b"default,5", b"mailers", b"a:b.c-d_e,1", b"*")
_PASSWORD = "c4n4ry"  # noqa: S105 - a test value
_URLS = tuple(
    url.replace("PASSWORD", _PASSWORD).encode()
    for url in (
        "redis://:PASSWORD@10.0.0.7:6379/0",
        "rediss://user:PASSWORD@h/1?ssl_cert_reqs=none",
        "unix://:PASSWORD@/run/s?db=1",
    )
)


def check_query(text: str) -> str:
    """Parse a rule's query, and evaluate it."""
    try:
        query = parse(text)
    except QueryError as error:
        expect(0 <= error.position <= len(text), "the caret is under a character of the query, or behind it")
        return "QueryError"
    expect(parse(str(query)) == query, "a query says what it was read from")
    for facts in _workers():
        expect(query.matches(facts) == _holds(text, facts), "a query holds where its words say so")
    return "read"


def check_yaml(text: str) -> str:
    """Parse a YAML text."""
    try:
        parse_yaml(text)
    except YamlError as error:
        expect(str(error).strip(), "the error names the fault")
        return "YamlError"
    return "read"


def check_settings(given: tuple[Mapping[str, bytes], Mapping[str, str]]) -> str:
    """Load a config folder and an environment."""
    files, variables = given
    folder = _folder()
    for name in _FILES:
        (folder / "config" / name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / "config" / name).write_bytes(content)
    try:
        load(variables, folder)
    except ConfigurationError as error:
        expect(error.problems, "the error names the fault")
        expect(all(str(problem).encode("utf-8", "surrogatepass") for problem in error.problems), "in words")
        return "ConfigurationError"
    return "loaded"


def check_sidekiq_file(content: bytes) -> str:
    """Load the file of ``worker -C``."""
    path = _folder() / "sidekiq.yml"
    path.write_bytes(content)
    try:
        read_config_file(path, "production")
    except ConfigurationError as error:
        expect(error.problems, "the error names the fault")
        return "ConfigurationError"
    return "read"


def check_option(text: str) -> str:
    """Parse a queue on a command line, and a URL."""
    try:
        name, weight = read_queue(text)
    except ValueError:
        return "ValueError"
    expect(QUEUE_NAME.fullmatch(name) and weight >= 0, "a queue has a name and a weight")
    return "read"


def check_url(url: str) -> str:
    """Parse the URL of a Redis, and show it."""
    secret = f":{_PASSWORD}@" in url and url.count(_PASSWORD) == 1
    expect(not secret or _PASSWORD not in mask_secrets(url), "a password is not shown")
    try:
        check_redis_url(url)
    except ValueError as error:
        expect(not secret or _PASSWORD not in str(error), "a password is not shown")
        return "ValueError"
    return "read"


def _written(rng: Random, corpus: Sequence[bytes]) -> bytes:
    return replace_atoms(rng, corpus) if rng.random() < 0.6 else mutate(rng, corpus)


def _settings(rng: Random) -> tuple[dict[str, bytes], dict[str, str]]:
    names = rng.sample(sorted(_FILES), rng.randrange(1, len(_FILES) + 1))
    changed_file = rng.choice(names)
    files = {name: _written(rng, (_FILES[name],)) if name == changed_file else _FILES[name] for name in names}
    chosen = rng.sample(sorted(_VARIABLES), rng.choice((0, 0, 1, 2)))
    variables = {
        name: _written(rng, (_VARIABLES[name],)).decode("utf-8", "surrogateescape").replace("\0", "") for name in chosen
    }
    return files, variables


@cache
def _folder() -> Path:
    """Return one folder for all inputs of a process; the caller removes temporary files."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (folder / "config").mkdir()
    return folder


def remove_folder() -> None:
    """Remove the files of the targets of this process."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(), ignore_errors=True)
        _folder.cache_clear()


@cache
def _workers() -> list[dict[str, frozenset[str]]]:
    rng = Random(1)
    words = ("high", "low", "cpu", "true", "special", "team", "not_owned", "Fuzz::NightlyWorker", "cronjob")
    return [
        {
            name: frozenset(
                rng.sample(_VALUES.get(name, words), rng.randrange(3) if name == "tags" else rng.randrange(2))
            )
            for name in ATTRIBUTES
        }
        for _ in range(8)
    ]


def _holds(text: str, facts: Mapping[str, frozenset[str]]) -> bool:
    """Evaluate a query again, by the shortest form of the grammar."""
    if text == "*":
        return True

    def term(words: str) -> bool:
        name, negated, values = re.fullmatch(r"(\w+)(!?)=(.*)", words, re.DOTALL).groups()  # type: ignore[union-attr]
        return bool(facts[name] & set(values.split(","))) is not bool(negated)

    return any(all(map(term, one.split("&"))) for one in text.split("|"))


TARGETS: tuple[Target, ...] = (
    Target("query", 12, lambda rng: mutate_text(rng, _QUERIES), check_query),
    Target("yaml", 6, lambda rng: mutate_text(rng, _YAML), check_yaml),
    Target("settings", 2, _settings, check_settings),
    Target("sidekiq-file", 2, lambda rng: _written(rng, _SIDEKIQ), check_sidekiq_file),
    Target("option", 4, lambda rng: mutate_text(rng, _OPTIONS), check_option),
    Target("url", 4, lambda rng: mutate_text(rng, _URLS), check_url),
)
