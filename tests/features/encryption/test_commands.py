"""Test `encryption`: new keys, and the jobs of each key wherever they wait."""

import base64
import json

import pytest

from framework.features.encryption.arguments import ArgumentEncryption
from framework.features.encryption.signatures import KeyVersions
from framework.wire import keys
from framework.wire.json import dumps
from tests.harness import ROOT

COMMAND = str(ROOT / "scripts" / "encryption")
KEY = b"k" * 32


@pytest.fixture
def site(site):
    site.write("application.yml", {"encryption": {"keys": {1: base64.b64encode(KEY).decode()}}})
    return site


def job(number, secret, version):
    payload = {"class": "Job", "jid": f"{number:024}", "args": [number], "queue": "default"}
    ArgumentEncryption(KeyVersions(version, {version: secret})).encrypt(payload)
    return dumps(payload)


def test_jobs_of_each_key_are_counted(site, redis):
    redis.lpush(keys.queue("default"), job(1, KEY, 1), job(2, b"x" * 32, 2), dumps({"class": "Job", "args": []}))
    redis.zadd(keys.RETRY, {job(3, KEY, 1): 1})
    redis.zadd(keys.DEAD, {job(4, KEY, 1): 1})
    found = json.loads(run(site, "show", "--json"))["keys"]
    assert [(one["here"], one["encrypts"], one["jobs"]) for one in found] == [(True, True, 3), (False, False, 1)]
    assert [one["key"].partition(".")[0] for one in found] == ["1", "2"]


def test_new_key_is_one_for_the_settings(site):
    assert len(base64.b64decode(run(site, "new-key"), validate=False)) == len(KEY)


def run(site, *words):
    done = site.run(COMMAND, *words, role="operator")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
