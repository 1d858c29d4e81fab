"""Build the endpoint of a shard from redis.yml: address, credentials, TLS and sentinels."""

from pathlib import Path

import pytest

from framework.all_settings import load
from framework.store.endpoints import endpoint_of


@pytest.fixture
def configured(tmp_path):
    """Return the settings that a redis.yml of this text makes."""

    def configure(text):
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "redis.yml").write_text(text)
        return load({}, tmp_path)

    return configure


def test_endpoint_of_a_stopped_embedded_store_is_known(configured):
    settings = configured("shards: {main: {url: embedded}}")
    assert endpoint_of(settings, "main").url == f"unix://{settings.var_dir}/stores/main/server.sock"


def test_endpoint_of_a_running_embedded_store_is_its_url_file(configured):
    settings = configured("shards: {main: {url: embedded}}")
    folder = Path(settings.var_dir) / "stores" / "main"
    folder.mkdir(parents=True)
    (folder / "url").write_text("redis://:secret@127.0.0.1:7777/0")
    endpoint = endpoint_of(settings, "main")
    assert endpoint.url == "redis://:secret@127.0.0.1:7777/0"
    assert "secret" not in endpoint.shown
    assert endpoint.shown == "redis://127.0.0.1:7777/0"


@pytest.mark.proves("F49")
def test_credentials_tls_and_sentinels_reach_the_client(configured):
    settings = configured(
        """
        shards:
          main: {url: "redis://cache.example:6380/2", username: app, password: hush, tls: true, protocol: 2}
          queues_shard_a: {sentinels: ["10.0.0.1:26379"], sentinel_name: jobs}
        """
    )
    main = endpoint_of(settings, "main")
    assert main.url == "rediss://cache.example:6380/2"
    options = dict(main.options)
    assert options["username"] == "app"
    assert options["password"] == "hush"
    assert options["protocol"] == 2
    assert options["ssl_cert_reqs"] == "required"
    assert options["ssl_check_hostname"] is True
    other = endpoint_of(settings, "queues_shard_a")
    assert other.sentinels == (("10.0.0.1", 26379),)
    assert other.sentinel_name == "jobs"
