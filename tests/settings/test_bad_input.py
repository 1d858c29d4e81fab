"""Check the errors of files and variables: each names the place, the value, the allowed values, the nearest correct spelling."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.all_settings import Settings, load
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.features.health.settings import HealthSection
from framework.features.isolation.worker import MARK_VARIABLE
from framework.process.identity import NONCE_VARIABLE
from framework.process.shared_state import SHARED_STATE_VARIABLE
from framework.process.signals import SUPERVISOR_VARIABLE, TERMINAL_VARIABLE
from framework.settings.base import SettingsSchema
from framework.settings.environment import INTERNAL_VARIABLES
from framework.telemetry.shared_counts import SHARED_COUNTS_VARIABLE
from tests.tables import each_row

SCHEMA = SettingsSchema(Settings)
SECRET = "hunter2"
LINK_FIELDS = "{jid}, {class}, {queue}, {shard}, {correlation_id}, {trace_id}, {span_id}"
NO_FIELD = ", without a field or a password there, for example https://logs.example/?q={jid}"
GOOD = "shards: {main: {url: 'redis://h:1/0'}}"


@pytest.fixture
def found(tmp_path: Path):
    """Load a project with these files and variables; return every problem."""
    (tmp_path / "config").mkdir()
    written: list[Path] = []

    def look(files: dict[str, str | bytes], env: dict[str, str] | None = None) -> list[ConfigurationProblem]:
        while written:
            written.pop().unlink()
        for name, content in ({"redis.yml": GOOD} | files).items():
            data = content if isinstance(content, bytes) else content.encode()
            (tmp_path / "config" / name).write_bytes(data)
            written.append(tmp_path / "config" / name)
        with pytest.raises(ConfigurationError) as caught:
            load(env or {}, tmp_path)
        assert SECRET not in str(caught.value)
        return list(caught.value.problems)

    return look


WHOLE = "must be a whole number from"
NO_WHOLE_NUMBERS = {
    "null": "null",
    "": "null",
    "true": "true",
    ".nan": "NaN",
    ".inf": "Infinity",
    "1e400": "'1e400'",
    "-1": "-1",
    "1.5": "1.5",
    "many": "'many'",
    "''": "''",
    "[1]": "[1]",
    "{a: 1}": '{"a": 1}',
    "2026-01-01": '"2026-01-01"',
    "٣": "'٣'",
    "1000000000000000000000": "1000000000000000000000",
}
NUMBERS = [
    ("concurrency: {}", "concurrency", f"{WHOLE} 1 to 10,000, not "),
    ("max_retries: {}", "max_retries", f"{WHOLE} 0 to 10,000, not "),
    (
        "max_retries_after_interruption: {}",
        "max_retries_after_interruption",
        f"{WHOLE} -1 to 10,000, not ",
    ),
    ("packing_depth: {}", "packing_depth", f"{WHOLE} 0 to 1,000,000,000, not "),
    ("throttling_database_seconds: {}", "throttling_database_seconds", f"{WHOLE} 0 to 1,000,000,000, not "),
    ("throttling_database_seconds_high: {}", "throttling_database_seconds_high", f"{WHOLE} 0 to 1,000,000,000, not "),
    ("metrics: {{most_series: {}}}", "metrics.most_series", f"{WHOLE} 1 to 10,000,000, not "),
    ("dead: {{max_jobs: {}}}", "dead.max_jobs", f"{WHOLE} 1 to 1,000,000,000, not "),
    ("dead: {{business_max_jobs: {}}}", "dead.business_max_jobs", f"{WHOLE} 1 to 1,000,000,000, not "),
    ("reliable_push: {{max_jobs: {}}}", "reliable_push.max_jobs", f"{WHOLE} 1 to 1,000,000,000, not "),
    ("reliable_push: {{max_bytes: {}}}", "reliable_push.max_bytes", f"{WHOLE} 1 to 1,099,511,627,776, not "),
    (
        "size_limit: {{compression_threshold: {}}}",
        "size_limit.compression_threshold",
        f"{WHOLE} 0 to 536,870,912, not ",
    ),
    ("size_limit: {{limit: {}}}", "size_limit.limit", f"{WHOLE} 0 to 536,870,912, not "),
    ("size_limit: {{decompressed_limit: {}}}", "size_limit.decompressed_limit", f"{WHOLE} 1 to 2,147,483,648, not "),
    (
        "size_limit: {{decoded_limit: {}}}",
        "size_limit.decoded_limit",
        f"{WHOLE} 1,000,000 to 1,099,511,627,776, not ",
    ),
    (
        "size_limit: {{decoding_budget: {}}}",
        "size_limit.decoding_budget",
        f"{WHOLE} 1,000,000 to 1,099,511,627,776, not ",
    ),
    ("timeout: {}", "timeout", "must be a number from 0 to 604,800, not "),
    ("poll_interval: {}", "poll_interval", "must be a number from 0.01 to 3,600, not "),
    ("held_alert_after: {}", "held_alert_after", "must be a number from 1 to 604,800, not "),
    ("unknown_class_max_wait: {}", "unknown_class_max_wait", "must be a number from 1 to 604,800, not "),
    ("flags: {{defer_delay: {}}}", "flags.defer_delay", "must be a number from 1 to 86,400, not "),
    ("flags: {{release_rate: {}}}", "flags.release_rate", "must be a number from 1 to 100,000, not "),
    ("dead: {{timeout_days: {}}}", "dead.timeout_days", "must be a number from 0.001 to 36,500, not "),
    ("health: {{cache: {}}}", "health.cache", "must be a number from 0 to 3,600, not "),
    ("health: {{timeout: {}}}", "health.timeout", "must be a number from 0.01 to 60, not "),
    (
        "health: {{wal_archiving: {{above: {}}}}}",
        "health.wal_archiving.above",
        f"{WHOLE} 0 to 1,000,000,000, not ",
    ),
    ("health: {{connections: {{above: {}}}}}", "health.connections.above", "must be a number from 0 to 1, not "),
]


@each_row(("text", "shown"), NO_WHOLE_NUMBERS.items())
@each_row(("line", "key", "words"), NUMBERS, ids=[key for _, key, _ in NUMBERS])
def test_number_wrong_or_out_of_bounds_is_refused(found, line, key, words, text, shown):
    if key == "packing_depth" and shown == "null":
        # As without the setting.
        return
    if text == "-1" and "-1 to" in words:
        text = shown = "-2"
    if text == "1.5" and "whole" not in words:
        text = shown = "-1.5"
    assert found({"application.yml": line.format(text)}) == [("config/application.yml", key, words + shown)]


APP, REDIS, ROUTING, QUEUES, CATEGORIES = (
    "application.yml",
    "redis.yml",
    "routing.yml",
    "queues.yml",
    "feature_categories.yml",
)
MODULE = "must be the name of a module, for example workers or shop.jobs, not "
SECTION = "must hold keys and values; allowed keys: "
RULE = "must be [query, queue] or [query, queue, shard]"
CREDENTIALS = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
QUERY = "only endpoint and region are allowed"
STORES = "file:///srv/payloads, or s3://bucket/prefix?region=eu-central-1"
KEY = "must be 32 random bytes in base64: `application-worker encryption new-key` prints a key"
SIGNATURE_KEYS = "keys, key_files, active_version, required, unsigned_queues"
NAMES = "must hold names, each with its keys and values"
KEY_VERSION = "this key must be a whole number from 1 to 999,999,999, not 'one'"
NO_KEY_FILE = "must be the path of a file that exists, not 'nowhere'"
WEIGHT = "must be a queue name, or [name, weight]"
SHARD_KEYS = (
    "url, sentinels, sentinel_name, sentinel_username, sentinel_password, sentinel_tls, username, password, tls, protocol, "
    "memory_budget"
)
BUDGET = "must be a number of bytes from 1,000,000 on, or a percentage from 1% to 100%, for example 70%"
HIDDEN = " (the value is not shown: it may be a secret)"
RUNTIME = "must be a number from 0.001 to 604,800"
URL = (
    "must be the word embedded, or begin with redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, "
    "redis+cluster:// or rediss+cluster://"
)
NO_HOST = "is not a URL: its host or port is invalid (in a password write / # ? @ : as %2F %23 %3F %40 %3A), not "
EMBEDDED_ALONE = "an embedded store has no sentinels, no credentials and no TLS: remove these keys"
DATABASE = "must end with the number of a database or nothing, for example redis://127.0.0.1:6379/0, not "
TLS = (
    "must be true, false, or keys and values; allowed keys: ca_file, cert_file, key_file, verify, check_hostname, not "
)
DB = "postgresql+psycopg://u:x@h/d"
DB_SCHEME = "must begin with postgresql+psycopg://"
WAL = f"positions of the WAL are PostgreSQL's{HIDDEN}"
DB_NEAR = f"{DB_SCHEME} (did you mean 'postgresql+psycopg'?): {WAL}"
DB_FORM = f", for example postgresql+psycopg://user@127.0.0.1:5432/shop{HIDDEN}"
NO_DB_HOST = f"{NO_HOST.removesuffix(', not ')}{HIDDEN}"
NO_WORD = "this key must be a name of ASCII letters, digits and underscores, not 'a-b'"
PROMETHEUS = "must be the URL of Prometheus without its path /api/v1, for example http://127.0.0.1:9090"
UP_TO = "must be a number from 0 to "
MARK = "must be a text of 1 to 100 characters that can be printed"

QUOTES = (
    "line 2, column 14: did not find expected alphabetic or numeric character "
    "(a value that begins with * or & must be in quotes)"
)

ENTRIES = [
    # schedule.yml
    (
        "schedule.yml",
        "schedule: [a]",
        "schedule",
        "must hold entries by name, for example {cleanup: {cron: '@daily', class: CleanupWorker}}, not [\"a\"]",
    ),
    (
        "schedule.yml",
        "schedule: {a b: {cron: '@daily', class: A}}",
        "schedule.a b",
        "this key must be a name of letters, digits and _ . : -, at most 100 of them, without a - in front, not 'a b'",
    ),
    (
        "schedule.yml",
        "schedule: {a: {cron: '@daily', class: A, time_zone: Europe/Berln}}",
        "schedule.a.time_zone",
        "must be the name of a time zone, for example UTC or Europe/Berlin (did you mean 'Europe/Berlin'?), not 'Europe/Berln'",
    ),
    (
        "schedule.yml",
        "schedule: {a: {cron: '@daily', class: A, missed: onec}}",
        "schedule.a.missed",
        "must be one of skip, once, all, not 'onec' (did you mean 'once'?)",
    ),
    (
        "schedule.yml",
        "schedule: {a: {cron: '@daily', class: A, args: 5}}",
        "schedule.a.args",
        "must be a list of arguments, for example [30, 'full'], not 5",
    ),
    (
        "schedule.yml",
        "schedule: {a: {cron: '@daily', class: A, clas: B}}",
        "schedule.a.clas",
        "unknown key (did you mean 'class'?); allowed: cron, class, args, time_zone, missed, overlap, enabled, spread",
    ),
    (
        "schedule.yml",
        "schedule:\n  a: {cron: */5 * * * *, class: A}",
        "",
        QUOTES,
    ),
    (
        "schedule.yml",
        "schedule: {a: {cron: '@daily', class: A, spread: 90000}}",
        "schedule.a.spread",
        "must be a whole number from 0 to 86,400, not 90000",
    ),
    (
        APP,
        "cron: 5",
        "cron",
        "must hold keys and values; allowed keys: enabled, application, spread, installation, not 5",
    ),
    (APP, "cron: {spread: -1}", "cron.spread", "must be a whole number from 0 to 86,400, not -1"),
    (
        APP,
        "cron: {installation: a b}",
        "cron.installation",
        "must be a name of ASCII letters, digits and underscores, not 'a b'",
    ),
    (APP, "cron: {enabled: some}", "cron.enabled", "must be true or false, not 'some'"),
    (
        APP,
        "cron: {application: a b}",
        "cron.application",
        "must be a name of ASCII letters, digits and underscores, not 'a b'",
    ),
    # application.yml
    (APP, "generated_files:", "generated_files", "must be the path of a folder, not null"),
    (APP, "generated_files: ' '", "generated_files", "must be the path of a folder, not ' '"),
    (APP, "generated_files: [a]", "generated_files", 'must be the path of a folder, not ["a"]'),
    (
        APP,
        "generated_files: ~/shop",
        "generated_files",
        "must be the path of a folder without ~, which only a shell reads, not '~/shop'",
    ),
    (APP, "features: {}", "features", "must be a list of names, for example [shop.features:TENANT], not {}"),
    (
        APP,
        "features: shop",
        "features[0]",
        "must be a module and a name in it, for example shop.features:TENANT, not 'shop'",
    ),
    (APP, "features: ['a b:C']", "features[0]", f"{MODULE}'a b:C'"),
    (APP, "workers_module:", "workers_module", "must be the name of a module, or a list of names, not null"),
    (APP, "workers_module: []", "workers_module", "must name at least one module, not []"),
    (APP, "workers_module: ' '", "workers_module", "must name at least one module, not ' '"),
    (APP, "workers_module: shop/jobs", "workers_module[0]", f"{MODULE}'shop/jobs'"),
    (APP, "workers_module: class", "workers_module[0]", f"{MODULE}'class'"),
    (APP, "workers_module: 'a,,b'", "workers_module[1]", f"{MODULE}''"),
    (APP, "workers_module: [a, 1]", "workers_module[1]", "must be a text, not 1"),
    (
        APP,
        "workers_module: {a: b}",
        "workers_module",
        'must be the name of a module, or a list of names, not {"a": "b"}',
    ),
    (APP, "context: [user]", "context", f'{SECTION}keys, not ["user"]'),
    (APP, "context: {keys: 5}", "context.keys", "must be a list, not 5"),
    (
        APP,
        "context: {keys: [a-b]}",
        "context.keys[0]",
        "must be a name of ASCII letters, digits and underscores, not 'a-b'",
    ),
    (APP, "logging:", "logging", f"{SECTION}format, level, jobs, not null"),
    (APP, "logging: [level]", "logging", f'{SECTION}format, level, jobs, not ["level"]'),
    (
        APP,
        "logging: {levle: info}",
        "logging.levle",
        "unknown key (did you mean 'level'?); allowed: format, level, jobs",
    ),
    (APP, "logging: {format: text}", "logging.format", "must be one of auto, json, console, not 'text'"),
    (
        APP,
        "logging: {level: warn}",
        "logging.level",
        "must be one of debug, info, warning, error, not 'warn' (did you mean 'warning'?)",
    ),
    (
        APP,
        "logging: {level: INFO}",
        "logging.level",
        "must be one of debug, info, warning, error, not 'INFO' (did you mean 'info'?)",
    ),
    (APP, "logging: {level: 1}", "logging.level", "must be one of debug, info, warning, error, not 1"),
    (APP, "logging: {jobs: maybe}", "logging.jobs", "must be true or false, not 'maybe'"),
    (APP, "dead: {business: maybe}", "dead.business", "must be true or false, not 'maybe'"),
    (APP, "logging: {jobs: }", "logging.jobs", "must be true or false, not null"),
    (APP, "logging: {1: 2}", "logging[1]", "this key must be a text, not 1"),
    (APP, "metrics: {mode: on}", "metrics.mode", "must be one of histogram, counters, off, not true"),
    (APP, "metrics: {directory: 5}", "metrics.directory", "must be the path of a folder, not 5"),
    (APP, "metrics: {statsd: 8125}", "metrics.statsd", "must be a text, not 8125"),
    (APP, "metrics: {statsd: ':x'}", "metrics.statsd", "must be HOST:PORT, for example 127.0.0.1:8125, not ':x'"),
    (APP, "metrics: {statsd_format: udp}", "metrics.statsd_format", "must be one of statsd, dogstatsd, not 'udp'"),
    (APP, "fleet: {reporter: maybe}", "fleet.reporter", "must be true or false, not 'maybe'"),
    (
        APP,
        "fleet: {queue_groups: 5}",
        "fleet.queue_groups",
        "must hold groups with their queues, such as {mail: [mails]}, not 5",
    ),
    (APP, "dashboard: 5", "dashboard", f"{SECTION}trace_url, log_url{HIDDEN}"),
    (APP, "dashboard: {trace_url: 5}", "dashboard.trace_url", f"must be a text{HIDDEN}"),
    *(
        (APP, f"dashboard: {{log_url: '{url}'}}", "dashboard.log_url", f"{message}{HIDDEN}")
        for url, message in (
            ("javascript:alert(1)//{jid}", "must begin with https:// or http://"),
            ("https://l.example/", f"names nothing of the job: give one of {LINK_FIELDS}"),
            ("https://l.example/{jids}", f"may have the fields {LINK_FIELDS} (did you mean 'jid'?)"),
            ("https://l.example/{jid!r}", f"may have the fields {LINK_FIELDS}"),
            ("https://l.example/{}", f"may have the fields {LINK_FIELDS}"),
            ("https://l.example/{jid", "is not a URL with fields in braces: write a brace itself as %7B or %7D"),
            ("https://l.example/ {jid}", "must be a URL without spaces and control characters"),
            ("https://{jid}.example/", f"must name its server{NO_FIELD}"),
            ("https:///{jid}", f"must name its server{NO_FIELD}"),
            ("https://a:b@l.example/{jid}", f"must name its server{NO_FIELD}"),
        )
    ),
    (APP, "tasks: 5", "tasks", f"{SECTION}url, database_down, params, ledger, keep{HIDDEN}"),
    (APP, "tasks: {url: 5}", "tasks.url", f"must be a text{HIDDEN}"),
    (
        APP,
        "tasks: {url: 'mysql://shop:secret@db/x'}",
        "tasks.url",
        f"must begin with sqlite:/// or postgresql+psycopg://{HIDDEN}",
    ),
    (APP, "tasks: {database_down: stop}", "tasks.database_down", "must be one of continue, wait, not 'stop'"),
    (APP, "tasks: {params: all}", "tasks.params", "must be one of loggable, whole, not 'all'"),
    (APP, "tasks: {ledger: on}", "tasks.ledger", "must be one of none, keep, heal, not true"),
    (APP, "tasks: {keep: 0}", "tasks.keep", "must be a number from 0.01 to 36,500, not 0"),
    (APP, "dead: 5", "dead", f"{SECTION}max_jobs, timeout_days, business, business_max_jobs, not 5"),
    (
        APP,
        "dead: {max_job: 1}",
        "dead.max_job",
        "unknown key (did you mean 'max_jobs'?); allowed: max_jobs, timeout_days, business, business_max_jobs",
    ),
    (
        APP,
        "size_limit: {mode: compres}",
        "size_limit.mode",
        "must be one of compress, track, not 'compres' (did you mean 'compress'?)",
    ),
    (
        APP,
        "packing_place: disk",
        "packing_place",
        "must be one of redis, payload_store, not 'disk' (did you mean 'redis'?)",
    ),
    (
        APP,
        "strict_arguments: rasie",
        "strict_arguments",
        "must be one of raise, warn, off, not 'rasie' (did you mean 'raise'?)",
    ),
    (
        APP,
        "push_in_transaction: wiat",
        "push_in_transaction",
        "must be one of raise, warn, wait, now, not 'wiat' (did you mean 'wait'?)",
    ),
    (APP, "reliable_push: on", "reliable_push", f"{SECTION}enabled, folder, max_jobs, max_bytes, not true"),
    (APP, "reliable_push: {enabled: maybe}", "reliable_push.enabled", "must be true or false, not 'maybe'"),
    (APP, "reliable_push: {folder: ''}", "reliable_push.folder", "must be the path of a folder, not ''"),
    (
        APP,
        "namespace_weights: [mailers]",
        "namespace_weights",
        'must hold namespaces with their weights, for example {mailers: 2}, not ["mailers"]',
    ),
    *(
        (APP, f"tag: {wrong}", "tag", f"{MARK}, not {shown}")
        for wrong, shown in (
            ("''", "''"),
            ("' '", "' '"),
            ('"a\\x1bb"', "'a\\x1bb'"),
            ('"a\\u202Eb"', "'a\\u202eb'"),
            ("x" * 101, f"'{'x' * 56}..."),
        )
    ),
    *(
        (APP, f"max_iteration_runtime: {wrong}", "max_iteration_runtime", f"{RUNTIME}, not {shown}")
        for wrong, shown in (("0", "0"), ("-1", "-1"), ("many", "'many'"), ("true", "true"), ("604801", "604801"))
    ),
    (APP, "tag: 5", "tag", "must be a text, not 5"),
    (APP, "tag: [a]", "tag", 'must be a text, not ["a"]'),
    *(
        (APP, f"labels: {wrong}", "labels", f"must be a list of texts, not {shown}")
        for wrong, shown in (("5", "5"), ("{a: b}", '{"a": "b"}'), ("", "null"))
    ),
    (APP, "labels: [5]", "labels[0]", "must be a text, not 5"),
    (APP, "labels: 'a,,b'", "labels[1]", f"{MARK}, not ''"),
    (APP, 'labels: [a, "b\\nc"]', "labels[1]", f"{MARK}, not 'b\\nc'"),
    *(
        (
            APP,
            f"sidekiq_metrics: {wrong}",
            "sidekiq_metrics",
            f"must be a list of versions of Sidekiq, for example [7, 8], or [] for none, not {shown}",
        )
        for wrong, shown in (("7", "7"), ("true", "true"), ("", "null"), ("{a: 7}", '{"a": 7}'))
    ),
    *(
        (APP, f"sidekiq_metrics: [7, {wrong}]", "sidekiq_metrics[1]", f"must be 7 or 8, not {shown}")
        for wrong, shown in (("6", "6"), ("'7'", "'7'"), ("true", "true"), ("[7]", "[7]"))
    ),
    (
        APP,
        "foreign_classes: 5",
        "foreign_classes",
        "must be a list of patterns of class names, for example ['Ruby::*'], not 5",
    ),
    (APP, "limits: [reports]", "limits", 'must map queue names to numbers, for example {reports: 4}, not ["reports"]'),
    (APP, "limits: {reports: 0}", "limits.reports", f"{WHOLE} 1 to 1,000,000, not 0"),
    (
        APP,
        "limits: {a b: 1}",
        "limits.a b",
        "this key must be a queue; a queue name is made of letters, digits and _ . : -, without a - in front, not 'a b'",
    ),
    (
        APP,
        "blocking_queues: ['a b']",
        "blocking_queues[0]",
        "must be a queue; a queue name is made of letters, digits and _ . : -, without a - in front, not 'a b'",
    ),
    (APP, "process_limits: 3", "process_limits", "must map queue names to numbers, for example {reports: 4}, not 3"),
    (
        APP,
        "concurrency_limit_by_urgency: some",
        "concurrency_limit_by_urgency",
        "must be true or false, not 'some'",
    ),
    (APP, "namespace_weights: {mailers: 0}", "namespace_weights.mailers", f"{WHOLE} 1 on, not 0"),
    (
        APP,
        "retired_workers: {a b: gone}",
        "retired_workers.a b",
        "this key must be a class name as it travels: words joined by '::', for example 'Chaos::SleepWorker', not 'a b'",
    ),
    (
        APP,
        "foreign_classes: ['Ruby::*', 'two words']",
        "foreign_classes[1]",
        "must be a class name, or a pattern of class names, for example Ruby::* or *::LegacyJob, not 'two words'",
    ),
    (
        APP,
        "flags: {provider: openfeatur}",
        "flags.provider",
        "must be one of redis, openfeature, not 'openfeatur' (did you mean 'openfeature'?)",
    ),
    (APP, f"encryption: {SECRET}", "encryption", f"{SECTION}keys, key_files, active_version{HIDDEN}"),
    (APP, f"encryption: {{keys: {{1: {SECRET}}}}}", "encryption", f"keys.1 {KEY}"),
    (APP, f"encryption: {{keys: {{1: [{SECRET}]}}}}", "encryption.keys[1]", f"must be a text{HIDDEN}"),
    (APP, f"encryption: {{keys: {{one: {SECRET}}}}}", "encryption.keys.one", KEY_VERSION),
    (APP, f"signatures: {SECRET}", "signatures", f"{SECTION}{SIGNATURE_KEYS}{HIDDEN}"),
    (APP, f"signatures: {{keys: {SECRET}}}", "signatures.keys", f"{NAMES}{HIDDEN}"),
    (APP, "signatures: {key_files: here}", "signatures.key_files", f"{NAMES}, not 'here'"),
    (APP, "signatures: {active_version: 0}", "signatures.active_version", f"{WHOLE} 1 to 999,999,999, not 0"),
    (APP, "signatures: {required: 2}", "signatures.required", "must be true or false, not 2"),
    (APP, "signatures: {required: true}", "signatures", "required needs a key: add it to keys or key_files"),
    (APP, "signatures: {unsigned_queues: 7}", "signatures.unsigned_queues", "must be a list, not 7"),
    (APP, f"encryption: {{keys: {SECRET}}}", "encryption.keys", f"{NAMES}{HIDDEN}"),
    (APP, "encryption: {key_files: here}", "encryption.key_files", f"{NAMES}, not 'here'"),
    (APP, "encryption: {key_files: {1: nowhere}}", "encryption.key_files[1]", NO_KEY_FILE),
    (APP, "encryption: {active_version: 0}", "encryption.active_version", f"{WHOLE} 1 to 999,999,999, not 0"),
    (
        APP,
        "encryption: {active_version: 2}",
        "encryption",
        "active_version = 2 has no key: add it to keys or key_files",
    ),
    (APP, "payload_offload: here", "payload_offload", f"{SECTION}url, threshold, keep{HIDDEN}"),
    (APP, "payload_offload: {threshold: 1}", "payload_offload.threshold", f"{WHOLE} 1,000 to 1,073,741,824, not 1"),
    (APP, "payload_offload: {keep: 60}", "payload_offload.keep", "must be a number from 3,600 to 1e+09, not 60"),
    (
        APP,
        "payload_offload: {url: 'file:///x', threshold: 6000000}",
        "payload_offload",
        "threshold = 6000000 is above size_limit.limit = 5000000: larger ones would go to Redis",
    ),
    (
        APP,
        "{size_limit: {mode: track}, payload_offload: {url: 'file:///x'}}",
        "payload_offload",
        "needs size_limit.mode = compress: only compressed arguments are offloaded",
    ),
    *(
        (APP, f"payload_offload: {{url: '{url}'}}", "payload_offload.url", f"{message}{HIDDEN}")
        for url, message in (
            ("/srv", f"must begin with file:// or s3://: {STORES}"),
            ("s3x://b", f"must begin with file:// or s3:// (did you mean 's3'?): {STORES}"),
            ("a b", "must be a URL without spaces and control characters"),
            ("file://srv/x", "must name a folder by its absolute path: file:///srv/payloads"),
            ("s3://b#c", "must have no fragment: write # as %23"),
            ("s3:///x", "must name a bucket: s3://bucket/prefix; another server is ?endpoint=https://host:port"),
            (f"s3://k:{SECRET}@b", f"must hold no credentials: they come from the environment ({CREDENTIALS})"),
            ("s3://b?endpiont=http://h", f"has the unknown part 'endpiont' (did you mean 'endpoint'?): {QUERY}"),
            ("s3://b?endpoint=h", "has a wrong endpoint: for example endpoint=https://host:port, region=eu-central-1"),
            ("s3://b?region=a&region=b", "must name endpoint and region once"),
        )
    ),
    (APP, f"sentry: {SECRET}", "sentry", f"{SECTION}dsn, report, traces_sample_rate, cron_monitors{HIDDEN}"),
    (
        APP,
        f"sentry: {{dsm: {SECRET}}}",
        "sentry.dsm",
        "unknown key (did you mean 'dsn'?); allowed: dsn, report, traces_sample_rate, cron_monitors",
    ),
    (APP, "sentry: {report: all}", "sentry.report", "must be one of every, exhausted, not 'all'"),
    (APP, "sentry: {traces_sample_rate: 2}", "sentry.traces_sample_rate", "must be a number from 0 to 1, not 2"),
    (APP, "sentry: {cron_monitors: 5}", "sentry.cron_monitors", "must be true or false, not 5"),
    (APP, "tracing: [opentelemetry]", "tracing", f'{SECTION}opentelemetry, not ["opentelemetry"]'),
    (APP, "tracing: {opentelemetry: 5}", "tracing.opentelemetry", "must be true or false, not 5"),
    (
        APP,
        f"sentry: {{dsn: 'http://u:{SECRET}@h/x'}}",
        "sentry.dsn",
        f"is not a DSN: copy it from the project's settings in Sentry (https://KEY@HOST/PROJECT){HIDDEN}",
    ),
    (APP, f"sentry: {{dsn: [{SECRET}]}}", "sentry.dsn", f"must be a text{HIDDEN}"),
    (
        APP,
        f"databases: [{SECRET}]",
        "databases",
        f"must hold names of databases with their settings, for example {{main: {{url: ..., replicas: [...]}}}}{HIDDEN}",
    ),
    (APP, f"databases: {{main: {SECRET}}}", "databases.main", f"{SECTION}url, replicas{HIDDEN}"),
    (APP, "databases: {main: {replicas: []}}", "databases.main.url", "is missing"),
    (APP, f"databases: {{a-b: {{url: '{DB}'}}}}", "databases.a-b", NO_WORD),
    (
        APP,
        f"databases: {{main: {{url: '{DB}', replica: '{SECRET}'}}}}",
        "databases.main.replica",
        "unknown key (did you mean 'replicas'?); allowed: url, replicas",
    ),
    (APP, f"databases: {{main: {{url: 'postgres+psycopg://u:{SECRET}@h/d'}}}}", "databases.main.url", DB_NEAR),
    (APP, f"databases: {{main: {{url: 'mysql://u:{SECRET}@h/d'}}}}", "databases.main.url", f"{DB_SCHEME}: {WAL}"),
    (APP, f"databases: {{main: {{url: '{SECRET}'}}}}", "databases.main.url", f"{DB_SCHEME}: {WAL}"),
    (APP, f"databases: {{main: {{url: 'postgres://u:a/{SECRET}@h/d'}}}}", "databases.main.url", NO_DB_HOST),
    (APP, f"databases: {{main: {{url: 'postgres://u:{SECRET}@h:0/d'}}}}", "databases.main.url", NO_DB_HOST),
    (APP, f"databases: {{main: {{url: 'postgres://u:{SECRET}@h:x/d'}}}}", "databases.main.url", NO_DB_HOST),
    (
        APP,
        f"databases: {{main: {{url: 'postgres://u:{SECRET}@/d'}}}}",
        "databases.main.url",
        f"has no server{DB_FORM}",
    ),
    (
        APP,
        f"databases: {{main: {{url: 'postgres://u:{SECRET}@h/'}}}}",
        "databases.main.url",
        f"has no database{DB_FORM}",
    ),
    (
        APP,
        f"databases: {{main: {{url: '{DB}', replicas: ['{DB}', 'postgres://u:{SECRET} @h/d']}}}}",
        "databases.main.replicas[1]",
        f"must be a URL without spaces and control characters{HIDDEN}",
    ),
    (
        APP,
        "size_limit: {uncompressed_queues: ['ruby:*', 'a b']}",
        "size_limit.uncompressed_queues[1]",
        "must be the name of a queue, or a pattern with * and ?, for example legacy or legacy:*, not 'a b'",
    ),
    (APP, "size_limit: {uncompressed_queues: 5}", "size_limit.uncompressed_queues", "must be a list, not 5"),
    (APP, "health: {port: 65536}", "health.port", f"{WHOLE} 0 to 65,535, not 65536"),
    (APP, "health: {port: http}", "health.port", f"{WHOLE} 0 to 65,535, not 'http'"),
    (APP, "health: [1]", "health", f"{SECTION}{', '.join(HealthSection.model_fields)}{HIDDEN}"),
    (
        APP,
        "health: {host: a b}",
        "health.host",
        "must be a name or an address, for example 127.0.0.1, 0.0.0.0 or ::, not 'a b'",
    ),
    (APP, "health: {replication_lag: {above_s: -1}}", "health.replication_lag.above_s", f"{UP_TO}2.592e+06, not -1"),
    (
        APP,
        "health: {replication_lag: {above_bytes: many}}",
        "health.replication_lag.above_bytes",
        f"{UP_TO}1.15292e+18, not 'many'",
    ),
    (
        APP,
        "health: {replication_lag: {above: 1}}",
        "health.replication_lag.above",
        "unknown key (did you mean 'above_s'?); allowed: above_s, above_bytes",
    ),
    (
        APP,
        "health: {autovacum: {}}",
        "health.autovacum",
        f"unknown key; allowed: {', '.join(HealthSection.model_fields)}",
    ),
    *(
        (APP, f"health: {{{key}: [1]}}", f"health.{key}", f"{SECTION}{allowed}, not [1]")
        for key, allowed in (
            ("wal_archiving", "above"),
            ("replication_lag", "above_s, above_bytes"),
            ("connections", "above"),
        )
    ),
    (APP, "health: {indicators: [1]}", "health.indicators", "must hold names, each with its keys and values, not [1]"),
    (APP, f"health: {{prometheus: {SECRET}}}", "health.prometheus", f"{SECTION}url{HIDDEN}"),
    (APP, "health: {prometheus: {}}", "health.prometheus.url", "is missing"),
    *(
        (APP, f"health: {{prometheus: {{url: '{wrong}'}}}}", "health.prometheus.url", f"{PROMETHEUS}{HIDDEN}")
        for wrong in (
            f"u:{SECRET}@h:9090",
            f"ftp://u:{SECRET}@h",
            f"http://u:{SECRET}@h:0",
            f"http://u:{SECRET}@h:x",
            f"http://u:{SECRET}@h/?a=b",
            f"http://{SECRET} h/",
            f"http://u:{SECRET}@",
            f"http://u:{SECRET}@[::1/",
        )
    ),
    (
        APP,
        "health: {indicators: {a: {query: up, above: 1}}}",
        "health",
        "indicators are queries to Prometheus: prometheus: {url: ...} is missing",
    ),
    *(
        (
            APP,
            f"health: {{prometheus: {{url: 'http://h'}}, indicators: {{a: {wrong}}}}}",
            f"health.indicators.a{key}",
            words,
        )
        for wrong, key, words in (
            ("{query: up}", "", "needs one of above and below: the value beyond which jobs wait"),
            ("{query: up, above: 1, below: 2}", "", "needs one of above and below: the value beyond which jobs wait"),
            ("{above: 1}", ".query", "is missing"),
            ("{query: ' ', above: 1}", ".query", "must be a query in PromQL, not ' '"),
            ("{query: [up], above: 1}", ".query", 'must be a query in PromQL, not ["up"]'),
            ("{query: up, above: .nan}", ".above", "must be a number from -1e+300 to 1e+300, not NaN"),
            ("{query: up, below: x}", ".below", "must be a number from -1e+300 to 1e+300, not 'x'"),
            (
                "{query: up, over: 1}",
                ".over",
                "unknown key (did you mean 'above'?); allowed: query, above, below, database",
            ),
            ("{query: up, above: 1, database: a-b}", ".database", f"{NO_WORD.removeprefix('this key ')}"),
            ("up", "", f"{SECTION}query, above, below, database, not 'up'"),
        )
    ),
    (APP, "health: {indicators: {a-b: {query: up, above: 1}}}", "health.indicators.a-b", NO_WORD),
    (
        APP,
        "health: {indicators: {autovacuum: {query: up, above: 1}}}",
        "health.indicators.autovacuum",
        "this key is already the name of another indicator, not 'autovacuum'",
    ),
    (APP, "null: 2", "null", f"unknown key; allowed: {', '.join(SCHEMA.keys_by_file[APP])}"),
    (APP, "1: 2", "1", f"unknown key; allowed: {', '.join(SCHEMA.keys_by_file[APP])}"),
    (
        APP,
        "concurency: 5",
        "concurency",
        f"unknown key (did you mean 'concurrency'?); allowed: {', '.join(SCHEMA.keys_by_file[APP])}",
    ),
    (
        APP,
        "shards: {}",
        "shards",
        f"unknown key; it belongs to redis.yml; allowed: {', '.join(SCHEMA.keys_by_file[APP])}",
    ),
    (APP, "foo", "", f"must hold keys and values; allowed keys: {', '.join(SCHEMA.keys_by_file[APP])}"),
    (APP, "- a", "", f"must hold keys and values; allowed keys: {', '.join(SCHEMA.keys_by_file[APP])}"),
    (APP, "timeout: 1\ntimeout: 2", "", "line 2, column 1: the key 'timeout' occurs for the second time"),
    (
        APP,
        "\ttimeout: 1",
        "",
        "line 1, column 1: found character that cannot start any token (a tab does not indent in YAML: use spaces)",
    ),
    (
        APP,
        "timeout: !seconds 1",
        "",
        "line 1, column 10: could not determine a constructor for the tag '!seconds'; only plain values are allowed, without tags",
    ),
    (
        APP,
        "a: 1\n---\nb: 2",
        "",
        "line 2, column 1: expected a single document in the stream, but found another document",
    ),
    (APP, "a: \x01", "", "line 1, column 4: the character #x0001 is not allowed in YAML"),
    (APP, b"a: \xe4", "", "is not UTF-8 (byte 3)"),
    # redis.yml
    (REDIS, "shard: {}", "shard", "unknown key (did you mean 'shards'?); allowed: shards, roles"),
    (
        REDIS,
        "shards: {main: {url: embedded}}\nroles: main",
        "roles",
        "must hold keys and values; allowed keys: meta, not 'main'",
    ),
    (
        REDIS,
        "shards: {main: {url: embedded}}\nroles: {meta: mian}",
        "roles",
        "meta names no shard: 'mian' (did you mean 'main'?); redis.yml has: main",
    ),
    (REDIS, "shards: {main: {url: embedded}}\nroles: {meta: 5}", "roles.meta", "must be a text, not 5"),
    (
        REDIS,
        "shards:",
        "shards",
        "must hold names of shards with their settings, for example {main: {url: embedded}}, not null",
    ),
    (
        REDIS,
        "shards: {mian: {url: embedded}}",
        "shards",
        "the shard main is missing: it always exists (shards: {main: {url: ...}}, or REDIS_URL); is 'mian' meant?",
    ),
    (
        REDIS,
        "shards: {main: {url: embedded}, 'a b': {url: embedded}}",
        "shards.a b",
        "this key must be a name of ASCII letters, digits, _ and -, not 'a b'",
    ),
    (
        REDIS,
        "shards: {main: {url: embedded}, ünï: {url: embedded}}",
        "shards.ünï",
        "this key must be a name of ASCII letters, digits, _ and -, not 'ünï'",
    ),
    (REDIS, "shards: {main: {url: embedded}, 5: {url: embedded}}", "shards[5]", "this key must be a text, not 5"),
    (REDIS, f"shards: {{main: 'redis://:{SECRET}@h'}}", "shards.main", f"{SECTION}{SHARD_KEYS}{HIDDEN}"),
    (
        REDIS,
        f"shards: {{main: {{url: embedded, pasword: {SECRET}}}}}",
        "shards.main.pasword",
        f"unknown key (did you mean 'password'?); allowed: {SHARD_KEYS}",
    ),
    (
        REDIS,
        f"shards: {{main: {{url: embedded, password: [{SECRET}]}}}}",
        "shards.main.password",
        f"must be a text{HIDDEN}",
    ),
    (REDIS, "shards: {main: {url: embedded, password: 1234}}", "shards.main.password", f"must be a text{HIDDEN}"),
    *(
        (
            REDIS,
            f"shards: {{main: {{url: embedded, memory_budget: {value}}}}}",
            "shards.main.memory_budget",
            f"{BUDGET}{HIDDEN}",
        )
        for value in ("much", "0%", "101%", "0", "-5", "999999", "true", "[1]", "1.5")
    ),
    (REDIS, "shards: {main: {url: embeded}}", "shards.main.url", f"{URL} (did you mean 'embedded'?), not 'embeded'"),
    (REDIS, f"shards: {{main: {{url: {SECRET}}}}}", "shards.main.url", f"{URL}, not '***'"),
    (
        REDIS,
        f"shards: {{main: {{url: 'reddis://:{SECRET}@h:1'}}}}",
        "shards.main.url",
        f"{URL} (did you mean 'redis'?), not 'reddis://***@h:1'",
    ),
    (REDIS, "shards: {main: {url: 'REDIS://h'}}", "shards.main.url", f"{URL} (did you mean 'redis'?), not 'REDIS://h'"),
    (REDIS, f"shards: {{main: {{url: 'redis://:{SECRET}@h:x'}}}}", "shards.main.url", f"{NO_HOST}'redis://***@h***'"),
    (REDIS, f"shards: {{main: {{url: 'redis://:{SECRET}#x@h'}}}}", "shards.main.url", f"{NO_HOST}'redis://***@h'"),
    (REDIS, f"shards: {{main: {{url: 'redis://u:12?{SECRET}@h'}}}}", "shards.main.url", f"{NO_HOST}'redis://***@h'"),
    (REDIS, f"shards: {{main: {{url: 'redis://u:{SECRET}'}}}}", "shards.main.url", f"{NO_HOST}'redis://u***'"),
    (
        REDIS,
        "shards: {main: {url: 'redis://h:0'}}",
        "shards.main.url",
        "has no server, for example redis://127.0.0.1:6379/0, not 'redis://h:0'",
    ),
    (REDIS, f"shards: {{main: {{url: 'redis://:{SECRET}@h/x'}}}}", "shards.main.url", f"{DATABASE}'redis://***@h/x'"),
    (REDIS, "shards: {main: {url: 'redis://h/0/1'}}", "shards.main.url", f"{DATABASE}'redis://h/0/1'"),
    (REDIS, "shards: {main: {url: 'redis://h/0#1'}}", "shards.main.url", f"{DATABASE}'redis://h/0***'"),
    (
        REDIS,
        "shards: {main: {url: 'redis://h?protocl=3'}}",
        "shards.main.url",
        (
            "has an unknown parameter 'protocl' (did you mean 'protocol'?); allowed: db, protocol, ssl_ca_certs, ssl_certfile, "
            "ssl_keyfile, ssl_cert_reqs, ssl_check_hostname, not 'redis://h***'"
        ),
    ),
    (
        REDIS,
        "shards: {main: {url: 'unix:///s?db=x'}}",
        "shards.main.url",
        "must give the parameter db as a whole number, not 'unix:///s***'",
    ),
    (
        REDIS,
        "shards: {main: {url: ' redis://h'}}",
        "shards.main.url",
        "must be a URL without spaces and control characters, not '***://h'",
    ),
    (REDIS, "shards: {main: {url: 5}}", "shards.main.url", f"must be a text{HIDDEN}"),
    (REDIS, "shards: {main: {url: 'redis://h', protocol: 4}}", "shards.main.protocol", "must be one of 2, 3, not 4"),
    (REDIS, "shards: {main: {url: 'redis://h', tls: maybe}}", "shards.main.tls", f"{TLS}'maybe'"),
    (
        REDIS,
        "shards: {main: {url: 'redis://h', tls: {verfy: true}}}",
        "shards.main.tls.verfy",
        "unknown key (did you mean 'verify'?); allowed: ca_file, cert_file, key_file, verify, check_hostname",
    ),
    (
        REDIS,
        "shards: {main: {url: 'redis://h', tls: {ca_file: /no/such}}}",
        "shards.main.tls.ca_file",
        "must be the path of a file that exists, not '/no/such'",
    ),
    (
        REDIS,
        f"shards: {{main: {{url: 'redis://h', tls: {{key_file: {__file__}}}}}}}",
        "shards.main.tls",
        "key_file needs the cert_file it belongs to",
    ),
    (
        REDIS,
        "shards: {main: {url: 'rediss://h', tls: false}}",
        "shards.main",
        "tls: false contradicts the rediss:// url: write redis://, or remove tls",
    ),
    (
        REDIS,
        "shards: {main: {url: 'unix:///s', tls: true}}",
        "shards.main",
        "tls and a unix:// url exclude each other: remove one of them",
    ),
    (REDIS, f"shards: {{main: {{url: embedded, password: {SECRET}}}}}", "shards.main", EMBEDDED_ALONE),
    (REDIS, "shards: {main: {url: embedded, tls: true}}", "shards.main", EMBEDDED_ALONE),
    (
        REDIS,
        "shards: {main: {url: 'redis://h', sentinels: ['a:1'], sentinel_name: m}}",
        "shards.main",
        "has a url and sentinels, and only one of them may be given: remove the other",
    ),
    *(
        (
            REDIS,
            f"shards: {{main: {{sentinels: ['{wrong}'], sentinel_name: m}}}}",
            "shards.main.sentinels[0]",
            f"must be host:port, for example 10.0.0.7:26379, not '{shown}'",
        )
        for wrong, shown in (
            ("a:0", "a:0"),
            ("a:99999", "a:99999"),
            ("a:²", "***"),
            ("a", "***"),
            (f"redis://:{SECRET}@a:1", "redis://***@a:1"),
        )
    ),
    (
        REDIS,
        "shards: {main: {sentinels: [[a, 1]], sentinel_name: m}}",
        "shards.main.sentinels[0]",
        f"must be host:port, for example 10.0.0.7:26379{HIDDEN}",
    ),
    # routing.yml: queries, queues and shards are judged where they are used (tests/route)
    (ROUTING, "rules: []", "rules", "unknown key; allowed: routing_rules"),
    (ROUTING, "[['*', a]]", "", "must hold keys and values; allowed keys: routing_rules"),
    *(
        (
            ROUTING,
            f"routing_rules: {wrong}",
            "routing_rules",
            f"must be a list of rules, each [query, queue] or [query, queue, shard], not {shown}",
        )
        for wrong, shown in (("", "null"), ("{'*': a}", '{"*": "a"}'), ("'*'", "'*'"))
    ),
    (ROUTING, "routing_rules: ['*']", "routing_rules[0]", f"{RULE}, not '*'"),
    (ROUTING, "routing_rules: [['*', a], ['*']]", "routing_rules[1]", f'{RULE}, not ["*"]'),
    (ROUTING, "routing_rules: [['*', a, main, x]]", "routing_rules[0]", f'{RULE}, not ["*", "a", "main", "x"]'),
    (ROUTING, "routing_rules: [[5, a]]", "routing_rules[0]", f'{RULE}; the query must be a text, not [5, "a"]'),
    (
        ROUTING,
        "routing_rules: [['*', 5]]",
        "routing_rules[0]",
        f'{RULE}; the queue must be a text or null, not ["*", 5]',
    ),
    (
        ROUTING,
        "routing_rules: [['*', a, [b]]]",
        "routing_rules[0]",
        f'{RULE}; the shard must be a text or null, not ["*", "a", ["b"]]',
    ),
    (
        ROUTING,
        "routing_rules: [{query: '*', queue: a}]",
        "routing_rules[0]",
        f'{RULE}, not {{"query": "*", "queue": "a"}}',
    ),
    # queues.yml
    (QUEUES, ":queues: [a]", ":queues", "unknown key (did you mean 'queues'?); allowed: queues"),
    (QUEUES, "queues: a", "queues", "must be a list of queue names, or of [name, weight], not 'a'"),
    *(
        (QUEUES, f"queues: [{wrong}]", "queues[0]", f"{WEIGHT}, not {shown}")
        for wrong, shown in (
            ("5", "5"),
            ("", "null"),
            ("{a: 2}", '{"a": 2}'),
            ("[a, 1, 2]", '["a", 1, 2]'),
            ("''", "''"),
        )
        if wrong
    ),
    *(
        (
            QUEUES,
            f"queues: [[a, {wrong}]]",
            "queues[0]",
            f'{WEIGHT}; the weight a whole number from 1 on, not ["a", {shown}]',
        )
        for wrong, shown in (("0", "0"), ("-1", "-1"), ("true", "true"), ("1.5", "1.5"), ("'2'", '"2"'), ("~", "null"))
    ),
    *(
        (
            QUEUES,
            f"queues: ['{wrong}']",
            "queues[0]",
            f"{WEIGHT}; a queue name is made of letters, digits and _ . : -, without a - in front, not '{wrong}'",
        )
        for wrong in (" a", "a b", "a,2", "ü", "*", "a/b")
    ),
    (
        QUEUES,
        "queues: [a, [a, 2]]",
        "queues",
        'must name each queue once: \'a\' occurs 2 times, not ["a", ["a", 2]]',
    ),
    # feature_categories.yml
    (
        CATEGORIES,
        "feature_categories: [5]",
        "feature_categories",
        "must be a list of names of categories, or hold names with their owners and descriptions, not [5]",
    ),
    (CATEGORIES, "feature_categories: {a: team}", "feature_categories.a", f"{SECTION}owner, description, not 'team'"),
    (CATEGORIES, "feature_categories: {a: {}}", "feature_categories.a.owner", "is missing"),
    (CATEGORIES, "feature_categories: {a: {owner: 5}}", "feature_categories.a.owner", "must be a text, not 5"),
    (CATEGORIES, "feature_categories: {a: {owner: ''}}", "feature_categories.a.owner", "must not be empty, not ''"),
    (
        CATEGORIES,
        "feature_categories: {a-b: {owner: x}}",
        "feature_categories.a-b",
        NO_WORD,
    ),
]


@each_row(("file", "text", "key", "message"), ENTRIES)
def test_file_entry_wrong_is_refused(found, file, text, key, message):
    assert found({file: text}) == [(f"config/{file}", key, message)]


def test_bad_input_table_has_every_key():
    tested_keys = {key for _, key, _ in NUMBERS} | {key for _, _, key, _ in ENTRIES}
    for key in SCHEMA.file_by_key:
        assert any(one.partition(".")[0].partition("[")[0] == key for one in tested_keys), key
        for inner in SCHEMA.keys_at([key]):
            assert f"{key}.{inner}" in tested_keys, (key, inner)


JSON = "must be JSON, because this setting is a list or has keys (Expecting value: line 1 column 1 (char 0))"
ENV_WORD = "must be a name of ASCII letters, digits, _ and -, for example production or staging"
EMPTY = "is empty: give it a value, or unset it"

VARIABLES = [
    ("FRAMEWORK_CONCURRENCY", "", EMPTY),
    ("FRAMEWORK_CONCURRENCY", "0x10", f"{WHOLE} 1 to 10,000, not '0x10'"),
    ("FRAMEWORK_CONCURRENCY", "true", f"{WHOLE} 1 to 10,000, not 'true'"),
    ("FRAMEWORK_CONCURRENCY", "\udcff", f"{WHOLE} 1 to 10,000, not '\\udcff'"),
    ("FRAMEWORK_TIMEOUT", "nan", "must be a number from 0 to 604,800, not 'nan'"),
    ("FRAMEWORK_LOGGING", "loud", f"{JSON}, not 'loud'"),
    ("FRAMEWORK_LOGGING", "null", "null is not a value: unset the variable"),
    ("FRAMEWORK_LOGGING", '{"a":' * 1_000_000, "is nested deeper than any setting"),  # 3.14 reads 100,000 levels
    ("FRAMEWORK_QUEUES", "[" * 1_000_000, "is nested deeper than any setting"),
    ("FRAMEWORK_WORKERS_MODULE", "[" * 1_000_000, f"is nested deeper than any setting, not '{'[' * 56}..."),
    ("FRAMEWORK_LOGGING", "[]", f"{SECTION}format, level, jobs, not []"),
    (
        "FRAMEWORK_LOGGING",
        '{"jobs": true, "jobs": false}',
        (
            "must be JSON, because this setting is a list or has keys (the key 'jobs' occurs for the second time), not "
            '\'{"jobs": true, "jobs": false}\''
        ),
    ),
    (
        "FRAMEWORK_LOGGING__LEVEL",
        "warn",
        "must be one of debug, info, warning, error, not 'warn' (did you mean 'warning'?)",
    ),
    ("FRAMEWORK_LOGGING__LEVEL", "", EMPTY),
    ("FRAMEWORK_LOGGING__JOBS", "null", "must be true or false, not 'null'"),
    ("FRAMEWORK_VAR_DIR", __file__, f"{__file__} is not a folder"),
    ("FRAMEWORK_VAR_DIR", "", EMPTY),
    ("FRAMEWORK_CONFIG_DIR", "", EMPTY),
    ("FRAMEWORK_ENV", "", EMPTY),
    ("FRAMEWORK_ENV", "our house", f"{ENV_WORD}, not 'our house'"),
    ("FRAMEWORK_QUEUES", "a,b", f"{JSON}, not 'a,b'"),
    ("FRAMEWORK_WORKERS_MODULE", "", EMPTY),
    ("FRAMEWORK_SHARDS", SECRET, f"{JSON}{HIDDEN}"),
    ("FRAMEWORK_SHARDS__B", SECRET, f"{SECTION}{SHARD_KEYS}{HIDDEN}"),
    ("FRAMEWORK_SHARDS__B__URL", f"http://:{SECRET}@x", f"{URL}, not 'http://***@x'"),
    (
        "FRAMEWORK_SHARDS__B__PASSWORD",
        SECRET,
        "needs a url (a Redis URL or the word embedded), or sentinels and sentinel_name",
    ),
    ("REDIS_URL", f"redis://:{SECRET}@h:x/0", f"{NO_HOST}'redis://***@h***'"),
    ("REDIS_URL", f"redis://:{SECRET}@h/x", f"{DATABASE}'redis://***@h/x'"),
    ("REDIS_URL", "h:6379", f"{URL}, not 'h:6379'"),
    (
        "SENTRY_DSN",
        SECRET,
        f"is not a DSN: copy it from the project's settings in Sentry (https://KEY@HOST/PROJECT){HIDDEN}",
    ),
]


UNKNOWN = [
    ("FRAMEWORK_LOGGING_LEVEL", "FRAMEWORK_LOGGING__LEVEL"),
    ("FRAMEWORK_LOGING__LEVEL", "FRAMEWORK_LOGGING__LEVEL"),
    ("FRAMEWORK_LOG_LEVEL", "FRAMEWORK_LOGGING__LEVEL"),
    ("FRAMEWORK__LOGGING__LEVEL", "FRAMEWORK_LOGGING__LEVEL"),
    ("FRAMEWORK_DEAD_MAX", "FRAMEWORK_DEAD__MAX_JOBS"),
    ("FRAMEWORK_CONCURENCY", "FRAMEWORK_CONCURRENCY"),
    ("FRAMEWORK_ROUTING_RULE", "FRAMEWORK_ROUTING_RULES"),
    ("FRAMEWORK_SHARDS_B_URL", "FRAMEWORK_SHARDS__B_URL"),
    ("FRAMEWORK_SHARD__B__URL", "FRAMEWORK_SHARDS__B__URL"),
    ("FRAMEWORK_REDIS_URL", "REDIS_URL"),
    ("FRAMEWORK_SENTRY_DSN", "FRAMEWORK_SENTRY__DSN"),
    ("FRAMEWORK_ENVIRONMENT", "FRAMEWORK_ENV"),
    ("FRAMEWORK_ENV_NAME", "FRAMEWORK_ENV"),
    ("FRAMEWORK_CONFIG", "FRAMEWORK_CONFIG_DIR"),
    ("FRAMEWORK_VARDIR", "FRAMEWORK_VAR_DIR"),
    ("FRAMEWORK_CONCURRENCY__X", "FRAMEWORK_CONCURRENCY"),
    ("FRAMEWORK_timeout", "FRAMEWORK_TIMEOUT"),
    ("framework_timeout", "FRAMEWORK_TIMEOUT"),
    ("FRAMEWORK_LOGGING__LEVEL__X", "FRAMEWORK_LOGGING__LEVEL"),
    ("FRAMEWORK_LOGGING__LEVLE", "FRAMEWORK_LOGGING__LEVEL"),
    ("FRAMEWORK_LOGGING__JBOS", "FRAMEWORK_LOGGING__JOBS"),
    ("FRAMEWORK_LOGGING__", "FRAMEWORK_LOGGING"),
    ("FRAMEWORK_QUEUES__0", "FRAMEWORK_QUEUES"),
    ("FRAMEWORK_SHARDS__MAIN__TLS__VERFY", "FRAMEWORK_SHARDS__MAIN__TLS__VERIFY"),
    ("FRAMEWORK_SHARDS__MAIN__URLL", "FRAMEWORK_SHARDS__MAIN__URL"),
    ("FRAMEWORK_HEALTH__INDICATORS__A__QERY", "FRAMEWORK_HEALTH__INDICATORS__A__QUERY"),
    ("FRAMEWORK_NAME", "FRAMEWORK_NAMESPACE_WEIGHTS"),
    ("FRAMEWORK_REACT", None),
    ("FRAMEWORK_CONFIG_DIR__X", "FRAMEWORK_CONFIG_DIR"),
    ("FRAMEWORK_WORKER_ID__X", None),
]


@each_row(("name", "near"), UNKNOWN)
@each_row("value", ["", "react", f"redis://:{SECRET}@h", "\udcff"])
def test_unknown_variable_is_listed_and_no_problem(tmp_path, name, near, value):
    settings = load({name: value}, tmp_path)
    assert settings.unknown_variables == {name: near}
    assert settings == load({}, tmp_path).model_copy(update={"unknown_variables": {name: near}})


@pytest.mark.parametrize(
    "name",
    ["PATH", "framework_react", "FRAMEWORK_SERVICE_HOST", "FRAMEWORK_A_PORT_6379_TCP_ADDR", "MY_FRAMEWORK_NAME"],
)
def test_variable_of_another_program_is_not_listed(tmp_path, name):
    assert load({name: "x"}, tmp_path).unknown_variables == {}


def test_variables_between_processes_are_known(tmp_path):
    shared = (SHARED_COUNTS_VARIABLE, SHARED_STATE_VARIABLE)
    own = (MARK_VARIABLE, NONCE_VARIABLE, SUPERVISOR_VARIABLE, TERMINAL_VARIABLE, *shared)
    names = (*own, "FRAMEWORK_WORKER_ID", *from_checkout())
    assert {name.removeprefix("FRAMEWORK_").lower() for name in names} == INTERNAL_VARIABLES


def from_checkout() -> list[str]:
    code = "from framework import command_line as c; c.use_checkout_commands(); print(*c.child_environment())"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


@each_row(("name", "value", "message"), VARIABLES)
def test_variable_with_wrong_value_is_refused(found, name, value, message):
    assert found({}, {name: value}) == [("environment", name, message)]


@pytest.mark.parametrize(
    ("name", "value", "place", "message"),
    [
        (
            "FRAMEWORK_LOGGING",
            '{"levle": "info"}',
            ".levle",
            "unknown key (did you mean 'level'?); allowed: format, level, jobs",
        ),
        ("FRAMEWORK_QUEUES", '["a", 5]', "[1]", f"{WEIGHT}, not 5"),
        ("FRAMEWORK_ROUTING_RULES", '[["*"]]', "[0]", f'{RULE}, not ["*"]'),
        ("FRAMEWORK_FEATURE_CATEGORIES", '{"a": {}}', ".a.owner", "is missing"),
        ("FRAMEWORK_WORKERS_MODULE", "a,b/c", "[1]", f"{MODULE}'b/c'"),
        ("FRAMEWORK_SHARDS__MAIN__TLS", '{"verify": 3}', ".verify", "must be true or false, not 3"),
    ],
)
def test_variable_of_json_names_its_inner_place(found, name, value, place, message):
    assert found({}, {name: value}) == [("environment", name + place, message)]


def test_variables_without_prefix_are_ignored(tmp_path):
    env = {
        "FRAMEWORK_SERVICE_HOST": "10.0.0.1",
        "FRAMEWORK_SERVICE_PORT_HTTP": "80",
        "FRAMEWORK_PORT": "tcp://10.0.0.1:80",
        "FRAMEWORK_PORT_80_TCP_ADDR": "10.0.0.1",
        "FRAMEWORK_QUEUES_SERVICE_HOST": "10.0.0.1",
        "FRAMEWORK_LOGGING_PORT_80_TCP": "tcp://10.0.0.1:80",
        "FRAMEWORK_WORKER_ID": "worker-0-0",
        "FRAMEWORK_THEME": "dark",
        "CONCURRENCY": "x",
        "REDIS_URL": "",
        "SENTRY_DSN": "",
    }
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text(GOOD)
    settings = load(env, tmp_path)
    assert (settings.concurrency, settings.shards["main"].url) == (10, "redis://h:1/0")


def test_numbers_and_lists_may_be_text(tmp_path):
    env = {
        "FRAMEWORK_CONCURRENCY": " 1_000 ",
        "FRAMEWORK_TIMEOUT": "1e1",
        "FRAMEWORK_WORKERS_MODULE": '["a", "b.c"]',
        "FRAMEWORK_SHARDS__MAIN__PROTOCOL": "3",
        "FRAMEWORK_SHARDS__B__SENTINELS": "a:1, [::1]:2",
        "FRAMEWORK_SHARDS__B__SENTINEL_NAME": "m",
        "FRAMEWORK_LOGGING": '{"level": "debug", "jobs": true}',
        "FRAMEWORK_LOGGING__JOBS": "false",
    }
    settings = load(env, tmp_path)
    assert (settings.concurrency, settings.timeout, settings.workers_module) == (1000, 10.0, ("a", "b.c"))
    assert settings.shards["main"].protocol == 3
    assert settings.shards["b"].sentinels == (("a", 1), ("::1", 2))
    assert (settings.logging.level, settings.logging.jobs) == ("debug", False)


@pytest.mark.parametrize(
    ("file", "text", "key", "env"),
    [
        (APP, "concurrency: many", "concurrency", {"FRAMEWORK_CONCURRENCY": "5"}),
        (APP, "logging: {level: loud}", "logging.level", {"FRAMEWORK_LOGGING__LEVEL": "info"}),
        (APP, "logging: loud", "logging", {"FRAMEWORK_LOGGING__LEVEL": "info"}),
        (APP, "sentry: {dsm: x}", "sentry.dsm", {"SENTRY_DSN": "https://key@h/1"}),
        (REDIS, "shards: {main: {url: 'http://x'}}", "shards.main.url", {"REDIS_URL": "redis://h"}),
        (REDIS, "shards: [1]", "shards", {"REDIS_URL": "redis://h"}),
        (QUEUES, "queues: [5]", "queues[0]", {"FRAMEWORK_QUEUES": '["a"]'}),
    ],
)
def test_file_fault_is_named_behind_a_variable(found, file, text, key, env):
    assert [(problem.file, problem.key) for problem in found({file: text}, env)] == [(f"config/{file}", key)]


def test_section_may_come_from_file_and_environment(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text("shards: {b: {username: u}}")
    env = {
        "REDIS_URL": "redis://h",
        "FRAMEWORK_SHARDS__B__URL": "redis://b",
        "FRAMEWORK_SHARDS__B__PASSWORD": "x",
    }
    assert load(env, tmp_path).shards["b"].username == "u"


def test_load_lists_all_faults_at_once(found):
    problems = found(
        {
            APP: "{concurency: 1, timeout: -1, logging: {level: loud, jbos: 1}}",
            ROUTING: "routing_rules: [[",
            QUEUES: "queues: [5, [a, 0]]",
            REDIS: f"shards: {{main: {{url: 'http://:{SECRET}@h'}}, b: {{}}}}",
            "feature_categories.yaml": "feature_categories: {}",
        },
        {"FRAMEWORK_QUEUES": "x", "FRAMEWORK_DEAD": "y", "FRAMEWORK_SIZE_LIMIT__MODE": "z"},
    )
    assert sorted((problem.file, problem.key) for problem in problems) == [
        ("config/application.yml", "concurency"),
        ("config/application.yml", "logging.jbos"),
        ("config/application.yml", "logging.level"),
        ("config/application.yml", "timeout"),
        ("config/feature_categories.yaml", ""),
        ("config/queues.yml", "queues[0]"),
        ("config/queues.yml", "queues[1]"),
        ("config/redis.yml", "shards.b"),
        ("config/redis.yml", "shards.main.url"),
        ("config/routing.yml", ""),
        ("environment", "FRAMEWORK_DEAD"),
        ("environment", "FRAMEWORK_QUEUES"),
        ("environment", "FRAMEWORK_SIZE_LIMIT__MODE"),
    ]


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n", "\ufeffconcurrency: 10"])
def test_empty_file_and_byte_order_mark_are_no_faults(tmp_path, content):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "application.yml").write_text(content, encoding="utf-8")
    assert load({}, tmp_path).concurrency == 10


# --- names of files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "meant"),
    [
        ("rediss.yml", "shards: {}", "redis.yml"),
        ("Redis.yml", "shards: {}", "redis.yml"),
        ("routing.yaml", "routing_rules: []", "routing.yml"),
        ("rooting.yml", "routing_rules: []", "routing.yml"),
        ("feature_category.yml", "feature_categories: {}", "feature_categories.yml"),
        ("queue.yml", "queues: []", "queues.yml"),
        ("aplication.YML", "concurency: 5", "application.yml"),
    ],
)
def test_misspelt_file_is_named(tmp_path, name, content, meant):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load({}, tmp_path)
    message = f"the framework does not read a file of this name (did you mean {meant!r}?): rename it, or merge it into that one"
    assert caught.value.problems == ((f"config/{name}", "", message),)


@pytest.mark.parametrize("name", ["routing.yaml", "Routing.yml"])
def test_misspelt_second_file_is_named(found, name):
    problems = found({"routing.yml": "routing_rules: []", name: "routing_rules: []"})
    assert [problem.file for problem in problems] == [f"config/{name}"]


def test_files_of_other_programs_are_ignored(tmp_path):
    folder = tmp_path / "config"
    folder.mkdir()
    others = {
        "redis.yml": GOOD,
        "redis2.yml": GOOD,
        "redis.yml~": "shards: [",
        "redis.yml.bak": GOOD,
        "application.yaml": "spring: {}",
        "queue.yml": "dispatchers: []",
        "routing.yaml": "[",
        "database.yml": "development: {}",
        "schedule.yaml": "cron: {}",
        "._routing.yml": "routing_rules: []",
        "README": "x",
    }
    for name, content in others.items():
        (folder / name).write_text(content)
    (folder / "queues").mkdir()
    assert load({}, tmp_path).config_dir == folder


def test_folder_in_place_of_a_file_is_named(found, tmp_path):
    (tmp_path / "config" / "routing.yml").mkdir()
    (tmp_path / "config" / "queues.yml").symlink_to("nowhere")
    assert found({}) == [
        ("config/routing.yml", "", "cannot be read: Is a directory"),
        ("config/queues.yml", "", "cannot be read: No such file or directory"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_named(found, tmp_path):
    (tmp_path / "config" / "routing.yml").touch(mode=0)
    assert found({}) == [("config/routing.yml", "", "cannot be read: Permission denied")]


def test_config_dir_missing_is_refused(found, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "deploy").mkdir()
    place = "environment", "FRAMEWORK_CONFIG_DIR"
    missing = f"there is no folder {tmp_path.resolve() / 'confg'} (did you mean 'config'?)"
    assert found({}, {"FRAMEWORK_CONFIG_DIR": "confg"}) == [(*place, missing)]
    assert found({}, {"FRAMEWORK_CONFIG_DIR": __file__}) == [(*place, f"there is no folder {__file__}")]
    # Without files: the defaults and the environment.
    assert load({"FRAMEWORK_CONFIG_DIR": "empty"}, tmp_path).config_dir == tmp_path.resolve() / "empty"
