"""Encrypted arguments: read with the right key by the right job only; both keys of a rotation; lock keys that reveal nothing."""

import base64
import sys

import pytest

from framework.errors import ConfigurationError, MissingKeyError, PayloadError
from framework.features.encryption.arguments import ArgumentEncryption
from framework.features.encryption.signatures import KeyVersions
from framework.wire.compress import decompress_arguments, deflate_arguments
from framework.wire.json import dumps

OLD, NEW = b"1" * 32, b"2" * 32
ARGUMENTS = ["4111 1111", 7, {"nested": [1.5, None]}]


def job(**fields):
    return {"class": "ChargeWorker", "jid": "a" * 24, "args": ARGUMENTS, **fields}


def encrypted(keys=None, active=1, **fields):
    payload = job(**fields)
    encryption(keys, active).encrypt(payload)
    return payload


def encryption(keys=None, active=1):
    return ArgumentEncryption(KeyVersions(active, keys or {1: OLD}))


def read(payload, keys=None, active=1, limit=10_000):
    decompress_arguments(payload, limit, protected=encryption(keys, active))
    return payload["args"]


def test_encrypted_arguments_are_read_back():
    payload = encrypted()
    assert b"4111" not in dumps(payload)
    assert payload["encrypt"] is True
    assert len(payload["args"]) == 1
    assert read(payload) == ARGUMENTS


def test_compressed_arguments_are_encrypted_as_they_are():
    text = dumps(ARGUMENTS)
    stored = {"compressed": True, "original_job_size_bytes": len(text), "args": [deflate_arguments(text).decode()]}
    payload = encrypted(**stored)
    assert payload["args"] != stored["args"]
    assert read(payload) == ARGUMENTS


def test_equal_arguments_have_different_texts():
    assert encrypted()["args"] != encrypted()["args"]


def test_read_twice_changes_nothing():
    payload = encrypted()
    assert read(payload) == read(payload) == ARGUMENTS


def test_inflation_limit_holds_for_encrypted_arguments():
    with pytest.raises(PayloadError, match="inflate beyond 100 bytes"):
        read(encrypted(args=["x" * 1_000]), limit=100)


def test_changed_job_is_refused():
    changes = [
        {"jid": "b" * 24},
        {"class": "OtherWorker"},
        {"version": 1},
        {"original_job_size_bytes": 1},
        {"args": [base64.b64encode(b"x" * 60).decode()]},
        {"args": ["AAAA"]},
        {"args": ["é"]},
        {"aw_encryption_key": 7},
        {"aw_encryption_key": "one"},
        {"aw_encryption_key": "9" * 30 + ".aa"},
        {"args": []},
        {"args": ARGUMENTS},
    ]
    for change in changes:
        with pytest.raises(PayloadError):
            read({**encrypted(), **change})


def test_arguments_of_another_job_are_refused():
    own, other = encrypted(), encrypted(jid="b" * 24)
    with pytest.raises(PayloadError, match="taken from another job"):
        read({**own, "args": other["args"]})


def test_rotation_reads_jobs_of_both_keys():
    both = {1: OLD, 2: NEW}
    before, after = encrypted(), encrypted(both, 2)
    assert after["aw_encryption_key"].startswith("2.")
    assert read(before, both, 2) == read(after, both, 2) == ARGUMENTS


def test_missing_key_is_named():
    with pytest.raises(MissingKeyError, match=r"no key of version 2 \(it has 1\)"):
        read(encrypted({2: NEW}, 2))


def test_another_key_of_the_same_version_is_missing():
    with pytest.raises(MissingKeyError, match="another key of version 1"):
        read(encrypted(), {1: NEW})


def test_process_without_any_key_refuses_the_job():
    with pytest.raises(MissingKeyError, match="no key is configured"):
        decompress_arguments(encrypted(), 10_000)


def test_lock_key_depends_on_the_arguments_and_on_the_key():
    one, other = encryption(), encryption({1: NEW})
    assert one.lock_key("aw:lock:a") == encryption().lock_key("aw:lock:a")
    assert len({"aw:lock:a", one.lock_key("aw:lock:a"), one.lock_key("aw:lock:b"), other.lock_key("aw:lock:a")}) == 4


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigurationError, match=r"PATH\[encryption\].*scripts/setup"):
        encryption().load()


def test_sealed_data_is_read_at_its_place_alone():
    one = encryption()
    place = ["cron entry", "default", "nightly"]
    text = one.seal(b"[1]", place)
    assert one.open(text, place) == b"[1]"
    for changed, where in ((text, [*place[:2], "daily"]), (text[:-4] + "AAAA", place), (text + "!", place)):
        with pytest.raises(PayloadError, match="damaged, or were taken from another place"):
            one.open(changed, where)
    for name in ("2.00000000:", "x"):
        with pytest.raises(MissingKeyError):
            one.open(name + text, place)
