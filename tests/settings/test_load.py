"""Load files for an environment; one error lists every problem with its file and key."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework.all_settings import Settings, load
from framework.errors import ConfigurationError
from framework.settings.base import SettingsSchema
from framework.settings.model import DEFAULT_URL, QueueWeight, RoutingRule
from framework.settings.shard import SentinelAddress
from tests.tables import each_row

ROOT = Path(__file__).resolve().parent.parent.parent


def project(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "config").mkdir()
    for name, text in {"redis": "shards: {main: {url: 'redis://h:1/0'}}", **files}.items():
        (tmp_path / "config" / f"{name}.yml").write_text(text)
    return tmp_path


def problems(cwd: Path, **env: str) -> dict[tuple[str, str], str]:
    with pytest.raises(ConfigurationError) as caught:
        load(env, cwd)
    return {(problem.file, problem.key): problem.message for problem in caught.value.problems}


def test_committed_configuration_is_valid():
    settings = load({}, ROOT)
    assert settings.config_dir == ROOT / "config"
    assert (settings.root, settings.var_dir, settings.env_name) == (ROOT, ROOT / "var", "development")
    assert settings.shards.keys() == {"main", "queues_shard_a"}
    assert all(shard.is_embedded for shard in settings.shards.values())


def test_settings_without_files_are_the_defaults(tmp_path: Path):
    settings = load({}, project(tmp_path))
    assert (settings.concurrency, settings.timeout, settings.max_retries, settings.poll_interval) == (10, 25, 25, 1)
    assert settings.max_retries_after_interruption == 3
    assert (settings.logging.level, settings.logging.jobs) == ("info", True)
    assert (settings.dead.max_jobs, settings.dead.timeout_days) == (10_000, 180)
    assert (settings.dead.business, settings.dead.business_max_jobs) == (False, 1_000)
    sizes = settings.size_limit
    assert (sizes.mode, sizes.compression_threshold, sizes.limit, sizes.decompressed_limit) == (
        "compress",
        100_000,
        5_000_000,
        100_000_000,
    )
    assert (sizes.decoded_limit, sizes.decoding_budget) == (256_000_000, 256_000_000)
    assert (settings.workers_module, settings.routing_rules, settings.queues) == (("workers",), (), ())
    assert settings.namespace_weights == {}
    assert settings.databases == {}
    assert settings.strict_arguments == "raise"


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ("{limit: 50_000}", ("compression_threshold = 100000", "limit = 50000")),
        ("{compression_threshold: 5_000_001}", ("compression_threshold = 5000001", "limit = 5000000")),
        ("{decompressed_limit: 4_999_999}", ("decompressed_limit = 4999999", "limit = 5000000")),
        ("{mode: track, decompressed_limit: 4_999_999}", ("decompressed_limit = 4999999", "limit = 5000000")),
        ("{decoding_budget: 255_999_999}", ("decoding_budget = 255999999", "decoded_limit = 256000000")),
        ("{limit: 0, decompressed_limit: 99_999}", ("compression_threshold = 100000", "decompressed_limit = 99999")),
    ],
)
def test_size_limits_that_contradict_are_refused(tmp_path: Path, sizes: str, words: tuple[str, ...]):
    found = problems(project(tmp_path, application=f"size_limit: {sizes}"))
    message = found["config/application.yml", "size_limit"]
    assert all(word in message for word in words)


@each_row(
    "sizes",
    [
        "{limit: 0}",
        "{compression_threshold: 0}",
        "{compression_threshold: 5_000_000}",
        "{decompressed_limit: 5_000_000}",
        "{decoded_limit: 1_000_000, decoding_budget: 1_000_000}",
        "{mode: track, limit: 50_000}",
        "{mode: track, limit: 0, decompressed_limit: 1}",
        "{compression_threshold: 0, limit: 0, decompressed_limit: 1}",
    ],
)
def test_size_limits_that_agree_are_accepted(tmp_path: Path, sizes: str):
    assert load({}, project(tmp_path, application=f"size_limit: {sizes}"))


@pytest.mark.parametrize(("text", "mode"), [("raise", "raise"), ("warn", "warn"), ("off", "off"), ("'off'", "off")])
def test_strict_arguments_from_file_and_environment(tmp_path: Path, text: str, mode: str):
    cwd = project(tmp_path, application=f"strict_arguments: {text}")  # off is false to YAML
    assert load({}, cwd).strict_arguments == mode
    assert load({"FRAMEWORK_STRICT_ARGUMENTS": "warn"}, cwd).strict_arguments == "warn"
    assert load({"FRAMEWORK_STRICT_ARGUMENTS": "off"}, cwd).strict_arguments == "off"


@pytest.mark.parametrize("text", ["on", "true", "rasie", "''", "[warn]", "~"])
def test_strict_arguments_of_other_word_are_refused(tmp_path: Path, text: str):
    (message,) = [
        text
        for (file, key), text in problems(project(tmp_path, application=f"strict_arguments: {text}")).items()
        if (file, key) == ("config/application.yml", "strict_arguments")
    ]
    assert all(word in message for word in ("raise", "warn", "off"))
    (tmp_path / "config" / "application.yml").unlink()
    assert (
        "'wran'" in problems(tmp_path, FRAMEWORK_STRICT_ARGUMENTS="wran")["environment", "FRAMEWORK_STRICT_ARGUMENTS"]
    )


@pytest.mark.parametrize("text", ["retired_workers: {'Old::Worker': ' moved '}", "retired_workers:", ""])
def test_retired_workers_from_file_and_environment(tmp_path: Path, text: str):
    cwd = project(tmp_path, application=text)
    in_file = {"Old::Worker": "moved"} if "Old" in text else {}
    assert load({}, cwd).retired_workers == in_file
    assert load({"FRAMEWORK_RETIRED_WORKERS": '{"Older": "gone"}'}, cwd).retired_workers == {**in_file, "Older": "gone"}


@each_row(
    ("text", "key", "words"),
    [
        ("[Old]", "", "must map class names to reasons"),
        ("Old", "", "must map class names to reasons"),
        ("{Old: ''}", ".Old", "must be a text: the reason"),
        ("{Old: '  '}", ".Old", "must be a text: the reason"),
        ("{Old: null}", ".Old", "must be a text: the reason"),
        ("{Old: 3}", ".Old", "must be a text: the reason"),
        ("{Old: {reason: x}}", ".Old", "must be a text: the reason"),
        ("{old worker: x}", ".old worker", "'Chaos::SleepWorker', not 'old worker'"),
        ("{'Old:Worker': x}", ".Old:Worker", "words joined by '::'"),
        ("{Ölworker: x}", ".Ölworker", "words joined by '::'"),
    ],
)
def test_retired_worker_needs_class_name_and_reason(tmp_path: Path, text: str, key: str, words: str):
    found = problems(project(tmp_path, application=f"retired_workers: {text}"))
    assert words in found["config/application.yml", f"retired_workers{key}"]
    (tmp_path / "config" / "application.yml").unlink()
    as_json = json.dumps(yaml.safe_load(text))
    if as_json.startswith("{"):
        found = problems(tmp_path, FRAMEWORK_RETIRED_WORKERS=as_json)
        assert words in found["environment", f"FRAMEWORK_RETIRED_WORKERS{key}"]


def test_variable_name_cannot_hold_a_class_name(tmp_path: Path):
    found = problems(project(tmp_path), FRAMEWORK_RETIRED_WORKERS__OldWorker="x")
    assert "loses the capitals" in found["environment", "FRAMEWORK_RETIRED_WORKERS__OldWorker"]


@pytest.mark.parametrize("text", ["- search\n- billing\n", "feature_categories: [search, billing]"])
def test_categories_may_be_a_plain_list_of_names(tmp_path: Path, text: str):
    settings = load({}, project(tmp_path, feature_categories=text))
    assert {name: one.owner for name, one in settings.feature_categories.items()} == {
        "search": "search",
        "billing": "billing",
    }


def test_settings_are_read_from_files(tmp_path: Path):
    cwd = project(
        tmp_path,
        redis="shards: {main: {sentinels: ['s1:26379', 's2:26380'], sentinel_name: m, tls: true}, b: {url: embedded}}",
        routing="routing_rules: [['urgency=high', urgent], ['*', null, b], ['*', '']]",
        queues="queues: [a, [b, 2]]",
        feature_categories="feature_categories: {search: {owner: team, description: d}}",
        application="{workers_module: [a, b.c], concurrency: 3, logging: {jobs: false}}",
    )
    settings = load({}, cwd)
    assert settings.shards["main"].sentinels == (SentinelAddress("s1", 26379), SentinelAddress("s2", 26380))
    tls = settings.shards["main"].tls
    assert tls is not None
    assert tls.verify
    assert settings.routing_rules == (
        RoutingRule("urgency=high", "urgent"),
        RoutingRule("*", None, "b"),
        RoutingRule("*", None),
    )
    assert settings.queues == (QueueWeight("a"), QueueWeight("b", 2))
    assert settings.feature_categories["search"].owner == "team"
    assert (settings.workers_module, settings.concurrency, settings.logging.jobs) == (("a", "b.c"), 3, False)
    assert settings.logging.level == "info"


@pytest.mark.proves("I25")
def test_secrets_are_not_shown(tmp_path: Path):
    settings = load({}, project(tmp_path, redis="shards: {main: {url: 'redis://:hunter2@h/0', password: hunter3}}"))
    assert "hunter" not in repr(settings)
    password = settings.shards["main"].password
    assert password is not None
    assert password.get_secret_value() == "hunter3"


@pytest.mark.proves("I25")
def test_databases_from_file_and_environment_hide_passwords(tmp_path: Path):
    one = "postgres://u:hunter2@h/shop"
    cwd = project(tmp_path, application=f"databases: {{main: {{url: '{one}', replicas: ['postgresql://r/shop']}}}}")
    with_more = {"FRAMEWORK_DATABASES__MAIN__REPLICAS": "postgres:///shop?host=/run/a,postgres:///shop?host=/run/b"}
    settings = load({**with_more, "FRAMEWORK_DATABASES__CI__URL": "postgresql+psycopg://h/ci"}, cwd)
    assert "hunter" not in repr(settings)
    main, ci = settings.databases["main"], settings.databases["ci"]
    assert main.url == "postgresql+psycopg://u:hunter2@h/shop"  # the driver is set for any scheme of the URL
    assert main.replicas == ("postgresql+psycopg:///shop?host=/run/a", "postgresql+psycopg:///shop?host=/run/b")
    assert (ci.url, ci.replicas) == ("postgresql+psycopg://h/ci", ())
    assert load({}, cwd).databases["main"].replicas == ("postgresql+psycopg://r/shop",)


def test_health_from_file_and_environment_hides_passwords(tmp_path: Path):
    shown = (
        "{prometheus: {url: 'http://u:hunter2@h:9090/sub/'}, indicators: {a: {query: ' up ', below: '1'}}, cache: 0}"
    )
    cwd = project(tmp_path, application=f"health: {shown}")
    health = load({"FRAMEWORK_HEALTH__TIMEOUT": "2", "FRAMEWORK_HEALTH__INDICATORS__B__QUERY": "x"}
                  | {"FRAMEWORK_HEALTH__INDICATORS__B__ABOVE": "-1"}, cwd).health  # fmt: skip
    assert "hunter" not in repr(health)
    assert health.prometheus is not None
    assert health.prometheus.url == "http://u:hunter2@h:9090/sub"
    assert (health.cache, health.timeout) == (0, 2)
    assert {name: (one.query, one.above, one.below, one.database) for name, one in health.indicators.items()} == {
        "a": ("up", None, 1, None),
        "b": ("x", -1, None, None),
    }
    (cwd / "config" / "application.yml").write_text("health: {replication_lag: {above_s: null}}")
    without = load({}, cwd).health
    assert (without.replication_lag.above_s, without.replication_lag.above_bytes) == (None, 1 << 30)
    assert (without.wal_archiving.above, without.connections.above, without.cache, without.timeout) == (42, 0.9, 5, 1)


def test_settings_are_frozen(tmp_path: Path):
    settings: Any = load({}, project(tmp_path))
    with pytest.raises(ValueError, match="frozen"):
        settings.concurrency = 3


def test_environment_overrides_files(tmp_path: Path):
    env = {
        "FRAMEWORK_LOGGING__JOBS": "false",
        "FRAMEWORK_CONCURRENCY": "7",
        "FRAMEWORK_WORKERS_MODULE": "x, y.z",
        "FRAMEWORK_ENV": "production",
        "FRAMEWORK_VAR_DIR": "elsewhere",
        "FRAMEWORK_SHARDS__B__PASSWORD": "123",
        "FRAMEWORK_QUEUES": '["q", ["r", 2]]',
        "REDIS_URL": "rediss://other:1/2",
        "UNRELATED": "x",
        "FRAMEWORK_SERVICE_HOST": "10.0.0.1",
    }
    redis = "shards: {main: {url: 'redis://h', password: secret}, b: {url: 'redis://b'}}"
    settings = load(
        env, project(tmp_path, application="{concurrency: 3, logging: {level: debug, jobs: true}}", redis=redis)
    )
    assert (settings.logging.level, settings.logging.jobs, settings.concurrency) == ("debug", False, 7)
    assert settings.workers_module == ("x", "y.z")
    assert (settings.env_name, settings.var_dir) == ("production", tmp_path / "elsewhere")
    assert settings.queues == (QueueWeight("q"), QueueWeight("r", 2))
    assert settings.shards["b"].url == "redis://b"
    password = settings.shards["b"].password
    assert password is not None
    assert password.get_secret_value() == "123"
    # The password in the file belongs to another server.
    assert (settings.shards["main"].url, settings.shards["main"].password) == ("rediss://other:1/2", None)


def test_config_folder_search_order(tmp_path: Path):
    cwd = project(tmp_path)
    assert load({}, cwd).root == cwd
    assert load({"FRAMEWORK_CONFIG_DIR": str(ROOT / "config")}, cwd).root == ROOT
    # In a checkout its own folder; elsewhere, as with an editable installation, an empty folder or none is no reason for it.
    assert load({}, ROOT / "framework" / "settings").root == ROOT
    inner_folder = tmp_path / "inner"
    inner_folder.mkdir()
    without = load({}, inner_folder)
    (inner_folder / "config").mkdir()
    assert load({}, inner_folder).config_dir == without.config_dir == inner_folder / "config"
    assert (load({}, inner_folder).schedule, without.schedule, without.root) == ({}, {}, inner_folder)
    assert problems(cwd, FRAMEWORK_CONFIG_DIR="nowhere") == {
        ("environment", "FRAMEWORK_CONFIG_DIR"): f"there is no folder {cwd / 'nowhere'}"
    }


def test_shard_main_defaults_to_the_local_redis(tmp_path: Path):
    cwd = project(tmp_path, application="concurrency: 3")
    (cwd / "config" / "redis.yml").unlink()
    assert load({}, cwd).shards["main"].url == DEFAULT_URL


@each_row(
    ("files", "key", "words"),
    [
        ({"redis": "shards: {b: {url: embedded}}"}, ("config/redis.yml", "shards"), "main is missing"),
        ({"redis": "shards: {main: {url: 'http://h'}}"}, ("config/redis.yml", "shards.main.url"), "redis://"),
        ({"redis": "shards: {main: {url: 'redis://h:99999'}}"}, ("config/redis.yml", "shards.main.url"), "not a URL"),
        ({"redis": "shards: {main: {url: 'redis://'}}"}, ("config/redis.yml", "shards.main.url"), "has no server"),
        ({"redis": "shards: {main: {}}"}, ("config/redis.yml", "shards.main"), "needs a url"),
        ({"redis": "shards: {main: null}"}, ("config/redis.yml", "shards.main"), "allowed keys: url,"),
        (
            {"redis": "shards: {main: {urll: x, url: embedded}}"},
            ("config/redis.yml", "shards.main.urll"),
            "did you mean 'url'",
        ),
        (
            {"redis": "shards: {main: {url: embedded, tls: {verfy: 1}}}"},
            ("config/redis.yml", "shards.main.tls.verfy"),
            "'verify'",
        ),
        (
            {"redis": "shards: {main: {sentinels: [a], sentinel_name: b}}"},
            ("config/redis.yml", "shards.main.sentinels[0]"),
            "host:port",
        ),
        ({"redis": "shards: {main: {sentinels: ['a:1']}}"}, ("config/redis.yml", "shards.main"), "belong together"),
        ({"redis": "shrds: {}"}, ("config/redis.yml", "shrds"), "did you mean 'shards'"),
        ({"redis": "shards: [1]"}, ("config/redis.yml", "shards"), "names of shards"),
        ({"redis": "- 1"}, ("config/redis.yml", ""), "keys and values"),
        ({"redis": "shards: {main: {url: embedded"}, ("config/redis.yml", ""), "line 2, column 1"),
        ({"routing": "routing_rules: [['*']]"}, ("config/routing.yml", "routing_rules[0]"), "[query, queue]"),
        ({"routing": "routing_rules: ['*', default]"}, ("config/routing.yml", "routing_rules[0]"), "[query, queue]"),
        ({"routing": "routing_rules: [['*', 3]]"}, ("config/routing.yml", "routing_rules[0]"), "queue must be a text"),
        ({"queues": "queues: [[a, 0]]"}, ("config/queues.yml", "queues[0]"), "from 1 on"),
        ({"queues": "queues: [3]"}, ("config/queues.yml", "queues[0]"), "a queue name"),
        (
            {"feature_categories": "feature_categories: {a: {}}"},
            ("config/feature_categories.yml", "feature_categories.a.owner"),
            "is missing",
        ),
        (
            {"feature_categories": "feature_categories: {a: {owner: ' '}}"},
            ("config/feature_categories.yml", "feature_categories.a.owner"),
            "must not be empty, not ' '",
        ),
        (
            {"feature_categories": "feature_categories: {a: {owner: x, descripton: y}}"},
            ("config/feature_categories.yml", "feature_categories.a.descripton"),
            "did you mean 'description'",
        ),
        (
            {"feature_categories": "feature_categories: {a: team}"},
            ("config/feature_categories.yml", "feature_categories.a"),
            "must hold keys and values; allowed keys: owner, description",
        ),
        *(
            (
                {"feature_categories": f"feature_categories: {{'{name}': {{owner: x}}}}"},
                ("config/feature_categories.yml", f"feature_categories.{name}" if name else "feature_categories['']"),
                words,
            )
            for name, words in (
                ("global-search", "ASCII letters, digits and underscores, not 'global-search'"),
                ("sеarch", "ASCII letters"),  # the e is Cyrillic
                ("", "ASCII letters"),
                ("search ", "ASCII letters"),
                ("not_owned", "reserved"),
            )
        ),
        (
            {"application": "namespace_weights: {mail-ers: 2}"},
            ("config/application.yml", "namespace_weights.mail-ers"),
            "ASCII letters",
        ),
        (
            {"application": "namespace_weights: {mailers: 0}"},
            ("config/application.yml", "namespace_weights.mailers"),
            "a whole number from 1 on, not 0",
        ),
        (
            {"application": "namespace_weights: {mailers: true}"},
            ("config/application.yml", "namespace_weights.mailers"),
            "a whole number from 1 on, not true",
        ),
        (
            {"application": "namespace_weights: [a]"},
            ("config/application.yml", "namespace_weights"),
            "namespaces with their weights",
        ),
        ({"application": "concurency: 3"}, ("config/application.yml", "concurency"), "did you mean 'concurrency'"),
        (
            {"application": "concurrency: 0"},
            ("config/application.yml", "concurrency"),
            "from 1 to 10,000, not 0",
        ),
        ({"application": "concurrency: true"}, ("config/application.yml", "concurrency"), "10,000, not true"),
        ({"application": "timeout: .inf"}, ("config/application.yml", "timeout"), "not Infinity"),
        (
            {"application": "logging: {levle: info}"},
            ("config/application.yml", "logging.levle"),
            "did you mean 'level'",
        ),
        ({"application": "logging: {level: loud}"}, ("config/application.yml", "logging.level"), "debug, info"),
        (
            {"application": "workers_module: shop/jobs"},
            ("config/application.yml", "workers_module[0]"),
            "name of a module",
        ),
        ({"application": "shards: {}"}, ("config/application.yml", "shards"), "unknown key"),
    ],
)
def test_problem_names_file_and_key(tmp_path: Path, files: dict[str, str], key: tuple[str, str], words: str):
    found = problems(project(tmp_path, **files))
    assert words in found[key]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FRAMEWORK_LOGGING__JOBS", "perhaps", "true or false, not 'perhaps'"),
        ("FRAMEWORK_TIMEOUT", "soon", "not 'soon'"),
        ("FRAMEWORK_ENV", "two words", "name of ASCII letters"),
        ("FRAMEWORK_SHARDS__MAIN__URL", "http://h", "redis://"),
        ("FRAMEWORK_QUEUES", "a,b", "JSON"),
        ("REDIS_URL", "localhost:6379", "redis://"),
    ],
)
def test_problem_of_environment_names_the_variable(tmp_path: Path, name: str, value: str, words: str):
    found = problems(project(tmp_path), **{name: value})
    assert words in found[("environment", name)]


@pytest.mark.proves("I25")
def test_problems_are_listed_together_without_secrets(tmp_path: Path):
    cwd = project(
        tmp_path,
        redis="shards: {main: {url: 'http://:hunter2@h'}}",
        routing="routing_rules: [[",
        application="{concurency: 1, timeout: -1}",
    )
    with pytest.raises(ConfigurationError) as caught:
        load({"FRAMEWORK_LOGGING__LEVEL": "loud"}, cwd)
    assert len(caught.value.problems) == 5
    assert "5 problems in the configuration" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_every_setting_has_a_source():
    given = {"env_name", "config_dir", "config_label", "root", "origins", "unknown_variables", "var_dir"}
    assert set(Settings.model_fields) - given == set(SettingsSchema(Settings).file_by_key)
