import pytest

from framework import ConfigurationError
from framework.declare import registry
from framework.declare.worker import ApplicationWorker
from framework.errors import UnknownShardError
from framework.settings.load import load
from framework.wiring.client import checked_router, open_shards


@pytest.fixture
def configured(tmp_path):
    """Return the settings that config files of these texts make."""

    def configure(**files):
        folder = tmp_path / "config"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.yml").write_text(text)
        return load({"FRAMEWORK_CONFIG_DIR": str(folder)}, tmp_path)

    return configure


@pytest.mark.proves("R3", "R17")
def test_clients_neither_retry_nor_check_health(configured):
    """redis-py's own defaults retry each command ten times, which repeats pushes and loses fetched jobs."""
    settings = configured(redis='shards: {main: {url: "redis://127.0.0.1:1/0"}}')
    shard = open_shards(settings, role="test")["main"]
    for client in (shard.client, shard.open_client("fetch", read_timeout_s=7.0)):
        options = client.connection_pool.connection_kwargs
        assert options["retry"].get_retries() == 0
        assert options["health_check_interval"] == 0
        assert options["decode_responses"] is False
        assert options["socket_connect_timeout"] == 2.0
    assert client.connection_pool.connection_kwargs["socket_timeout"] == 7.0


def test_unknown_shard_error_lists_the_known_shards(configured):
    shards = open_shards(configured(redis='shards: {main: {url: "redis://127.0.0.1:1/0"}}'), role="test")
    with pytest.raises(UnknownShardError, match=r"'mian'.*main"):
        shards["mian"]


def test_workers_that_contradict_the_configuration_are_all_named(configured):
    settings = configured(
        redis='shards: {main: {url: "redis://127.0.0.1:1/0"}}',
        feature_categories="feature_categories: {search: {owner: team}}",
    )
    with registry.isolated():

        class LostWorker(ApplicationWorker):
            feature_category = "serach"
            shard = "nowhere"

            def perform(self) -> None: ...

        class FineWorker(ApplicationWorker):
            feature_category = "not_owned"

            def perform(self) -> None: ...

        with pytest.raises(ConfigurationError) as caught:
            checked_router(settings)
    assert [(problem.key, "LostWorker" in problem.file) for problem in caught.value.problems] == [
        ("feature_category", True),
        ("shard", True),
    ]


def test_class_registered_and_retired_is_refused(configured):
    settings = configured(
        redis='shards: {main: {url: "redis://127.0.0.1:1/0"}}',
        application="retired_workers: {LateWorker: x, OldWorker: y, GoneWorker: z}",
    )
    with registry.isolated():

        class LateWorker(ApplicationWorker):
            feature_category = "not_owned"
            wire_name = "LateWorker"

            def perform(self) -> None: ...

        class NewWorker(ApplicationWorker):
            feature_category = "not_owned"
            aliases = ("OldWorker",)

            def perform(self) -> None: ...

        with pytest.raises(ConfigurationError) as caught:
            checked_router(settings)
    assert [(problem.key, problem.file.rpartition(".")[2]) for problem in caught.value.problems] == [
        ("wire_name", "LateWorker"),
        ("aliases", "NewWorker"),
    ]
    first, second = (problem.message for problem in caught.value.problems)
    assert first == "'LateWorker' is also in the setting retired_workers: remove that entry, or the class"
    assert second == "'OldWorker' is also in the setting retired_workers: remove that entry, or this alias"
