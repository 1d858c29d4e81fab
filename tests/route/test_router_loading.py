import pytest

from framework import ConfigurationError
from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ConfigurationProblem
from framework.feature import Feature, Late
from framework.route import router
from framework.route.router import checked_router, load_workers


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


def check_of_feature(workers):
    yield ConfigurationProblem("toy.yml", f"from_modules={workers.from_modules}", str(len(workers.declarations)))


def test_problems_of_features_are_reported_with_the_others(configured, monkeypatch):
    toy = Feature(name="toy", problems=Late(f"{__name__}:check_of_feature"))
    monkeypatch.setattr(router, "all_features", lambda: (toy, Feature(name="silent")))
    settings = configured(redis='shards: {main: {url: "redis://127.0.0.1:1/0"}}')
    with registry.isolated():
        with pytest.raises(ConfigurationError) as caught:
            checked_router(settings)
        assert list(caught.value.problems) == [ConfigurationProblem("toy.yml", "from_modules=False", "0")]
        with pytest.raises(ConfigurationError) as caught:
            load_workers(settings, ["no_such_module"])
    assert [one.key for one in caught.value.problems][1:] == ["from_modules=True"]


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
