"""Test what is shown of the settings: each with its origin, and no secret in any."""

import json

import pytest

from framework.all_settings import load
from framework.settings.base import SettingsSchema, secrets_of
from framework.settings.shown import shown_settings

KEY = "A" * 42 + "8="
FILES = {
    "redis.yml": "shards:\n  main: {url: 'redis://ann:s3same-m@h:1/2'}\n"
    "  b: {sentinels: ['s:1'], sentinel_name: m, username: ann, password: s3same-p, sentinel_password: s3same-s}",
    "application.yml": "concurrency: 5\ntimeout: 30\nsize_limit: {mode: compress}\n"
    "sentry: {dsn: 'https://s3same-d@sentry.example/1'}\n"
    "databases: {main: {url: 'postgresql://ann:s3same-a@h/x', replicas: ['postgresql://ann:s3same-r@h/x']}}\n"
    "health: {prometheus: {url: 'https://ann:s3same-h@h'}}\n"
    "tasks: {url: 'postgresql+psycopg://ann:s3same-k@h/x?sslpassword=s3same-q'}\n"
    f"encryption: {{keys: {{1: '{KEY}'}}}}\nsignatures: {{keys: {{7: '{KEY}'}}}}",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config").mkdir()
    for name, text in FILES.items():
        (tmp_path / "config" / name).write_text(text)
    return tmp_path


def shown(settings):
    return {one.name: one for one in shown_settings(settings, SettingsSchema(type(settings)).file_by_key)}


def test_no_secret_of_the_settings_is_shown(folder):
    settings = load({}, folder)
    texts = json.dumps([one.value for one in shown(settings).values()])
    known = set(secrets_of(settings))
    assert len(known) > 8
    assert [one for one in known if one in texts] == []
    assert "s3same" not in texts
    assert KEY not in texts


def test_each_value_has_its_origin(folder):
    environment = {
        "FRAMEWORK_TIMEOUT": "40",
        "FRAMEWORK_SIZE_LIMIT": '{"limit": 3000000}',
        "FRAMEWORK_ENCRYPTION__ACTIVE_VERSION": "1",
        "FRAMEWORK_LIMITS": '{"mail": 3}',
        "REDIS_URL": "redis://other:1/0",
        "SENTRY_DSN": "https://abcdefgh@sentry.example/2",
    }
    found = shown(load(environment, folder))
    assert {name: (found[name].value, found[name].origin) for name in found if name.startswith("size_limit.m")} == {
        "size_limit.mode": ('"compress"', "config/application.yml")
    }
    expected = {
        "concurrency": ("5", "config/application.yml"),
        "timeout": ("40.0", "FRAMEWORK_TIMEOUT"),
        "size_limit.limit": ("3000000", "FRAMEWORK_SIZE_LIMIT"),
        "size_limit.compression_threshold": ("100000", ""),
        "encryption.keys.1": ('"***"', "config/application.yml"),
        "encryption.active_version": ("1", "FRAMEWORK_ENCRYPTION__ACTIVE_VERSION"),
        "limits": ('{"mail": 3}', "FRAMEWORK_LIMITS"),
        "shards.main.url": ('"redis://other:1/0"', "REDIS_URL"),
        "shards.b.password": ('"***"', "config/redis.yml"),
        "sentry.dsn": ('"***"', "SENTRY_DSN"),
        "poll_interval": ("1.0", ""),
        "databases.main.replicas": ('["postgresql+psycopg://h/x"]', "config/application.yml"),
    }
    assert {name: (found[name].value, found[name].origin) for name in expected} == expected


def test_each_setting_is_shown(folder):
    settings = load({}, folder)
    assert {name.partition(".")[0] for name in shown(settings)} == set(SettingsSchema(type(settings)).file_by_key)
