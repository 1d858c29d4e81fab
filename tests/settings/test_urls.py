"""Read the address of a Redis from keys, URLs and variables; a conflict names the setting to remove."""

from pathlib import Path

import pytest

from framework.all_settings import load
from framework.errors import ConfigurationError
from framework.settings.urls import mask_secrets, parse_redis_url
from framework.store.embedded import endpoint_of
from tests.tables import each_row

SECRET = "hunter2"
BY_SENTINELS = {"FRAMEWORK_SHARDS__MAIN__SENTINELS": "s1:1,s2:2", "FRAMEWORK_SHARDS__MAIN__SENTINEL_NAME": "house"}


@pytest.fixture
def project(tmp_path: Path):
    """Return an empty project, or one whose redis.yml holds this shard main."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "application.yml").write_text("")

    def made(main: str | None = None) -> Path:
        if main is not None:
            (tmp_path / "config" / "redis.yml").write_text(f"shards: {{main: {main}}}")
        return tmp_path

    return made


def main(folder: Path, **env: str):
    return endpoint_of(load(env, folder), "main")


def problem_of(folder: Path, **env: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(env, folder)
    (problem,) = caught.value.problems
    assert SECRET not in str(caught.value)
    return str(problem)


def test_sentinels_in_variables_need_no_file(project):
    endpoint = main(project(), **BY_SENTINELS)
    assert (endpoint.url, endpoint.sentinels, endpoint.sentinel_name) == ("", (("s1", 1), ("s2", 2)), "house")
    assert endpoint.sentinel_options == ()


@pytest.mark.parametrize("under", ["{url: embedded}", "{url: 'redis://h', password: x}"])
def test_sentinels_in_variables_replace_a_url_in_a_file(project, under):
    assert main(project(under), **BY_SENTINELS).sentinel_name == "house"


def test_url_in_a_variable_replaces_sentinels_in_a_file(project):
    folder = project("{sentinels: ['s:1'], sentinel_name: m, sentinel_password: x, password: kept}")
    endpoint = main(folder, FRAMEWORK_SHARDS__MAIN__URL="redis://h:2/3")
    assert (endpoint.url, endpoint.sentinels, endpoint.sentinel_options) == ("redis://h:2/3", (), ())
    assert dict(endpoint.options)["password"] == "kept"


def test_sentinel_password_in_a_variable_joins_a_url_in_a_file(project):
    folder = project("{url: 'redis+sentinel://s/house'}")
    endpoint = main(folder, FRAMEWORK_SHARDS__MAIN__SENTINEL_PASSWORD="x")
    assert endpoint.sentinels == (("s", 26379),)
    assert dict(endpoint.sentinel_options) == {"password": "x"}


@pytest.mark.parametrize(
    ("url", "sentinels", "name", "options"),
    [
        ("redis+sentinel://a:1,b:2/house/3", (("a", 1), ("b", 2)), "house", {"db": 3}),
        ("redis+sentinel://a/house", (("a", 26379),), "house", {}),
        ("redis+sentinel://[::1]:5,[fe80::2]/house/", (("::1", 5), ("fe80::2", 26379)), "house", {}),
        (
            "redis+sentinel://us%40er:p%2Fa%23%3Fs%3As@a:1/my%20house/0?protocol=2",
            (("a", 1),),
            "my house",
            {"username": "us@er", "password": "p/a#?s:s", "db": 0, "protocol": 2},
        ),
        ("redis+sentinel://:pw@a:1/house?db=4", (("a", 1),), "house", {"password": "pw", "db": 4}),
    ],
)
def test_url_of_sentinels_is_read(project, url, sentinels, name, options):
    endpoint = main(project(), REDIS_URL=url)
    assert (endpoint.url, endpoint.sentinels, endpoint.sentinel_name) == ("", sentinels, name)
    assert dict(endpoint.options) == options


def test_rediss_sentinel_reaches_both_with_tls(project):
    endpoint = main(project(), REDIS_URL="rediss+sentinel://a/house?ssl_cert_reqs=none")
    options = dict(endpoint.options)
    assert (options["ssl"], options["ssl_cert_reqs"], options["ssl_check_hostname"]) == (True, "none", False)
    assert endpoint.sentinel_options == ()  # as the Redis itself


@pytest.mark.parametrize(
    ("url", "more", "expected"),
    [
        ("redis+sentinel://a/house?sentinel_tls=true", {}, {"ssl": True, "ssl_cert_reqs": "required"}),
        ("rediss+sentinel://a/house?sentinel_tls=false", {}, {"ssl": False}),
        ("rediss+sentinel://a/house", {"FRAMEWORK_SHARDS__MAIN__SENTINEL_TLS": "false"}, {"ssl": False}),
        (
            "redis+sentinel://a/house?sentinel_username=u&sentinel_password=p%26w",
            {},
            {"username": "u", "password": "p&w"},
        ),
    ],
)
def test_sentinel_settings_stay_apart_from_the_redis(project, url, more, expected):
    folder = project(f"{{url: '{url}'}}")
    found = dict(main(folder, **more).sentinel_options)
    assert {key: found[key] for key in expected} == expected
    assert "ssl_ca_certs" not in found


@each_row(
    ("url", "words"),
    [
        ("redis+sentinel://a:1", "has no name of a master"),
        ("redis+sentinel://a:1/", "has no name of a master"),
        ("redis+sentinel://a:1/0", "has no name of a master"),
        ("redis+sentinel:///house", "has no sentinel"),
        ("redis+sentinel://a:1,/house", "has no sentinel"),
        ("redis+sentinel://a:99999/house", "is not a URL"),
        ("redis+sentinel://a:1/house/x", "number of a database"),
        ("redis+sentinel://a:1/house/0/1", "number of a database"),
        (f"redis+sentinel://:{SECRET}@x@a:1/house", "is not a URL"),
        (f"redis+sentinel://u:{SECRET}#@a/house", "is not a URL"),
        ("redis+sentinel://app@a:1/house", "a user name without a password"),
        ("redis+sentinel://a/house?master_name=x", "write the name of the master in the path"),
        ("redis+sentinel://a/house?sentinel_usernam=x", "did you mean 'sentinel_username'"),
        ("redis+sentinel://a/house?sentinel_username=x", "without a sentinel_password"),
        ("redis+sentinel://a/house?sentinel_tls=perhaps", "sentinel_tls as true or false"),
        ("redis-sentinel://a/house", "did you mean 'redis+sentinel'"),
        (f"redis://h?sentinel_password={SECRET}", "belongs to a redis+sentinel:// url"),
        (f"redis://h?password={SECRET}", "or use the setting password"),
        ("redis://h?ssl=true", "write rediss://, or use the setting tls"),
        ("redis://h?socket_timeout=3", "timeouts, retries and the number of connections are fixed"),
        ("rediss://h?ssl_ca_path=/etc", "the setting tls.ca_file"),
        (
            "rediss://h?ssl_cert_reqs=CERT_NOEN",
            "none, optional, required (did you mean 'none'?), or use the setting tls.verify",
        ),
        ("rediss://h?ssl_check_hostname=maybe", "true or false"),
        ("rediss://h?ssl_ca_certs=", "ssl_ca_certs a value"),
        ("redis://h?ssl_cert_reqs=none", "write rediss:// for redis://"),
        ("rediss://h?ssl_ca_certs=/no/such/file", "ssl_ca_certs: must be the path of a file that exists"),
    ],
)
def test_wrong_url_is_shown_without_its_secret(project, url, words):
    assert words in problem_of(project(), REDIS_URL=url)


@pytest.mark.parametrize(
    ("value", "verify"),
    [("none", False), ("CERT_NONE", False), ("ssl.CERT_NONE", False), ("required", True), ("CERT_OPTIONAL", True)],
)
def test_ssl_cert_reqs_is_the_setting_verify(project, value, verify):
    endpoint = main(project(), REDIS_URL=f"rediss://h:1/2?ssl_cert_reqs={value}")
    assert endpoint.url == "rediss://h:1/2"
    assert dict(endpoint.options)["ssl_cert_reqs"] == ("required" if verify else "none")


@each_row(
    ("shard", "words"),
    [
        ("{url: 'redis://h', sentinels: ['s:1'], sentinel_name: m}", "has a url and sentinels"),
        ("{url: 'redis+sentinel://s/m', sentinels: ['s:1'], sentinel_name: m}", "has a url and sentinels"),
        ("{url: 'redis+sentinel://s/m', sentinel_name: m}", "the url names the master already"),
        ("{sentinels: ['s:1']}", "sentinels is given, sentinel_name is missing"),
        ("{url: 'redis://h', sentinel_name: m}", "sentinel_name is given, sentinels is missing"),
        ("{url: 'redis://h', sentinel_password: hunter2}", "sentinel_password belongs to sentinels"),
        ("{url: 'redis://h', sentinel_tls: true}", "sentinel_tls belongs to sentinels"),
        ("{sentinels: ['s:1'], sentinel_name: m, sentinel_username: u}", "needs the sentinel_password"),
        ("{url: 'rediss+sentinel://s/m', tls: false}", "write redis+sentinel://"),
        ("{url: 'rediss://h?ssl_cert_reqs=none', tls: {verify: true}}", "tls.verify and the url's ssl_cert_reqs"),
    ],
)
def test_exclusive_settings_are_refused(project, shard, words):
    assert words in problem_of(project(shard))


def test_redis_url_and_sentinels_in_variables_are_a_conflict(project):
    found = problem_of(project(), REDIS_URL=f"redis://:{SECRET}@h", **BY_SENTINELS)
    assert found.startswith("environment: REDIS_URL: has a url and sentinels")


def test_key_overrides_the_url(project):
    endpoint = main(project("{url: 'redis://u:old@h:1/0'}"), FRAMEWORK_SHARDS__MAIN__PASSWORD="new")
    assert endpoint.url == "redis://h:1/0"
    assert dict(endpoint.options) == {"username": "u", "password": "new"}
    assert endpoint.user == "u"


def test_secrets_of_a_url_are_not_in_its_repr(project):
    settings = load({"REDIS_URL": f"redis+sentinel://u:{SECRET}@s/m?sentinel_password={SECRET}"}, project())
    assert SECRET not in repr(settings)
    assert SECRET not in endpoint_of(settings, "main").shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis+sentinel://u:{SECRET}@a:1,[::1]:2/m/0?x={SECRET}", "redis+sentinel://***@a:1,[::1]:2/m/0***"),
        (f"redis+sentinel://a,{SECRET}%/m", "***"),
    ],
)
def test_sentinel_addresses_are_shown_without_secrets(url, shown):
    assert mask_secrets(url) == shown


def test_plain_url_is_unchanged(project):
    parsed = parse_redis_url("unix://user:p%40w@/run/redis.sock?db=2")
    assert (parsed.address, parsed.username, parsed.password, parsed.database) == (
        "unix:///run/redis.sock",
        "user",
        "p@w",
        2,
    )


@pytest.mark.parametrize("name", ["staging", "review-17", "prod"])
def test_unknown_environment_behaves_as_production(project, name):
    settings = load({"FRAMEWORK_ENV": name}, project())
    assert (settings.env_name, settings.production) == (name, True)


@pytest.mark.parametrize("name", ["development", "test"])
def test_environment_development_and_test_are_open(project, name):
    assert not load({"FRAMEWORK_ENV": name}, project()).production


@pytest.mark.parametrize(
    ("env", "folder", "label"),
    [
        ({}, "workers", "workers/all_queues.yml"),
        ({"FRAMEWORK_GENERATED_FILES": "made"}, "made", "made/all_queues.yml"),
        ({"FRAMEWORK_GENERATED_FILES": "/srv/app/made"}, "/srv/app/made", "/srv/app/made/all_queues.yml"),
    ],
)
def test_generated_files_have_a_folder_next_to_config(project, env, folder, label):
    here = project()
    settings = load(env, here)
    assert settings.generated_dir == here / folder
    assert settings.generated_file_label("all_queues.yml") == label


def test_generated_files_of_a_named_config_are_next_to_it(project, tmp_path):
    settings = load({"FRAMEWORK_CONFIG_DIR": str(project() / "config")}, tmp_path / "config")
    assert settings.generated_dir == tmp_path / "workers"
    assert settings.generated_file_label("released.yml") == f"{tmp_path}/workers/released.yml"


def test_generated_files_must_not_be_a_file(project):
    (project() / "made").write_text("")
    assert "is a file" in problem_of(project(), FRAMEWORK_GENERATED_FILES="made")


def test_problem_names_the_folder_in_use(project, tmp_path):
    folder = project("{url: 'redis://h', password: 5}") / "config"
    other = tmp_path / "elsewhere"
    other.mkdir()
    assert problem_of(tmp_path).startswith("config/redis.yml: ")
    assert problem_of(other, FRAMEWORK_CONFIG_DIR=str(folder)).startswith(f"{folder}/redis.yml: ")
    assert problem_of(tmp_path, FRAMEWORK_CONFIG_DIR=str(folder)).startswith("config/redis.yml: ")


def test_cluster_url_gives_nodes_tag_and_credentials(project):
    endpoint = main(
        project(), REDIS_URL="rediss+cluster://me:p%40ss@10.0.0.7,[::1]:7001/0?tag=jobs.a&ssl_cert_reqs=none"
    )
    assert (endpoint.cluster, endpoint.tag, endpoint.prefix) == (
        (("10.0.0.7", 6379), ("::1", 7001)),
        "jobs.a",
        "{jobs.a}:",
    )
    options = dict(endpoint.options)
    assert (options["username"], options["password"], options["ssl"], options["ssl_cert_reqs"]) == (
        "me",
        "p@ss",
        True,
        "none",
    )
    assert main(project(), REDIS_URL="redis+cluster://h").prefix == "{main}:"
    assert main(project(), REDIS_URL="redis://h").prefix == ""


@each_row(
    ("url", "reason"),
    [
        ("redis+cluster://", "has no node"),
        ("redis+cluster://h,", "has no node"),
        ("redis+cluster://h/1", "a cluster has no other"),
        ("redis+cluster://h?db=2", "a cluster has no other"),
        ("redis+cluster://h?tag={x}", "must give the parameter tag ASCII letters"),
        ("redis+cluster://h?tags=x", "has an unknown parameter 'tags'"),
        ("redis+cluster://me@h", "has a user name without a password"),
        ("redis://h?tag=x", "belongs to a redis+cluster:// url"),
        ("redis+clustr://h", "redis+cluster"),
    ],
)
def test_wrong_cluster_url_is_refused(project, url, reason):
    assert reason in problem_of(project(), REDIS_URL=url)
