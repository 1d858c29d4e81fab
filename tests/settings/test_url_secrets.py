"""A password in any setting that holds a URL appears in no message, no ``repr`` and no name that lines show."""

import pytest
from pydantic import BaseModel

from framework.all_settings import Settings, load
from framework.errors import ConfigurationError
from framework.features.tasks.database import TaskDatabase
from framework.settings.urls import shown_url
from framework.store.embedded import endpoint_of

CANARY = "hunter2"
TASKS = f"postgresql://u:{CANARY}@h/d?password={CANARY}&sslpassword={CANARY}"
ACCEPTED = {
    "FRAMEWORK_SHARDS__MAIN__URL": f"redis://u:{CANARY}@h:1/0",
    "FRAMEWORK_DATABASES__SHOP__URL": f"postgresql://u:{CANARY}@h/d?password={CANARY}",
    "FRAMEWORK_DATABASES__SHOP__REPLICAS": f"postgresql://u:{CANARY}@h/d?password={CANARY}",
    "FRAMEWORK_TASKS__URL": TASKS,
    "FRAMEWORK_HEALTH__PROMETHEUS__URL": f"http://u:{CANARY}@h:9090",
    "FRAMEWORK_SENTRY__DSN": f"https://{CANARY}@sentry.example.org/1",
}
REFUSED = {
    "FRAMEWORK_SHARDS__MAIN__URL": [f"redis://u:{CANARY}@h:x/0", f"redis://h/0?passwort={CANARY}"],
    "FRAMEWORK_DATABASES__SHOP__URL": [f"mysql://u:{CANARY}@h/d", f"postgresql://u:{CANARY}@h/"],
    "FRAMEWORK_DATABASES__SHOP__REPLICAS": [f"mysql://u:{CANARY}@h/d"],
    "FRAMEWORK_TASKS__URL": [f"mysql://u:{CANARY}@h/d", f"sqlite://{CANARY}"],
    "FRAMEWORK_HEALTH__PROMETHEUS__URL": [f"ftp://u:{CANARY}@h", f"http://h/?token={CANARY}"],
    "FRAMEWORK_SENTRY__DSN": [f"http://{CANARY}"],
    "FRAMEWORK_PAYLOAD_OFFLOAD__URL": [
        f"s3://u:{CANARY}@bucket",
        f"s3://bucket?endpoint=https://u:{CANARY}@h:9000",
        f"s3://bucket?endpoint=https://h:9000/%3Fsecret={CANARY}",
        f"s3://bucket?secret={CANARY}",
        f"http://u:{CANARY}@bucket",
    ],
}


def urls_of(model: type[BaseModel], prefix: str = "FRAMEWORK_") -> set[str]:
    """Return the variables of the settings whose names say that they hold a URL."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        place = f"{prefix}{name.upper()}"
        if name in ("url", "dsn", "replicas"):
            found.add(place)
        for kind in models_in(field.annotation):
            keyed = "dict" in str(field.annotation)
            found |= urls_of(kind, f"{place}__*__" if keyed else f"{place}__")
    return found


def models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [one for part in getattr(annotation, "__args__", ()) for one in models_in(part)]


def test_every_url_setting_is_covered():
    wanted = {one.replace("__MAIN__", "__*__").replace("__SHOP__", "__*__") for one in (*ACCEPTED, *REFUSED)}
    assert urls_of(Settings) - wanted == set()


def test_accepted_url_shows_no_password(tmp_path):
    (tmp_path / "config").mkdir()
    settings = load(ACCEPTED, tmp_path)
    shown = [repr(settings), str(settings), endpoint_of(settings, "main").shown, TaskDatabase(settings.tasks_url).name]
    assert [text for text in shown if CANARY in text] == []
    assert TaskDatabase(settings.tasks_url).name == "postgresql+psycopg://h/d"


@pytest.mark.parametrize("variable", REFUSED)
def test_refused_url_shows_no_password(tmp_path, variable):
    (tmp_path / "config").mkdir()
    for url in REFUSED[variable]:
        more = {"FRAMEWORK_DATABASES__SHOP__URL": "postgresql://h/d"} if "REPLICAS" in variable else {}
        with pytest.raises(ConfigurationError) as caught:
            load({**more, variable: url}, tmp_path)
        assert CANARY not in f"{caught.value}{caught.value!r}", url


def test_shown_url_leaves_out_every_secret_part():
    for url, shown in (
        ("redis://u:p@h:1/0?x=y", "redis://h:1/0"),
        ("postgres://u:p/q@h/d", "postgres://h/d"),
        ("s3://bucket/prefix?endpoint=https://u:p@h", "s3://bucket/prefix"),
        ("http://h/a#token", "http://h/a"),
        ("sqlite:///var/tasks.db", "sqlite:///var/tasks.db"),
        ("file:///srv/a@b", "file:///srv/a@b"),
        ("embedded", "embedded"),
    ):
        assert shown_url(url) == shown
