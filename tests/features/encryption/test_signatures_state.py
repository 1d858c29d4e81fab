"""Signatures of stored state: bound to their place, kept over a change of the key; and every key on Redis is signed, or is listed."""

import re
from pathlib import Path

import pytest

from framework.errors import MissingKeyError, PayloadError, StateRefusedError
from framework.features.encryption.signatures import KeyedStateSignatures, KeyVersions
from framework.wire.protected import UNSIGNED_STATE, StatePlace
from tests.reference_pages import text_of

OLD, NEW = b"1" * 32, b"2" * 32
ROOT = Path(__file__).resolve().parents[3]
PURPOSE = re.compile(r"StatePlace\(\s*\"([^\"]+)\"")
PLACE = StatePlace("cron entry", "aw:cron_entries:default", ("nightly",))


def signatures(keys=None, active=1, **options):
    return KeyedStateSignatures(KeyVersions(active, keys or {1: OLD}), **options)


def test_sealed_value_is_opened_at_its_place_alone():
    one = signatures(required=True)
    for data in (b"{}", b"", b"two\nlines", b"\xff\x00"):
        assert one.open(PLACE, one.seal(PLACE, data)) == data
    sealed = one.seal(PLACE, b"{}")
    others = [
        PLACE._replace(purpose="cron order"),
        PLACE._replace(key="aw:cron_entries:other"),
        PLACE._replace(identity=("daily",)),
        PLACE._replace(key='aw:cron_entries:default", "nightly', identity=()),
    ]
    for place in others:
        with pytest.raises(StateRefusedError, match="its signature is wrong"):
            one.open(place, sealed)
    for changed in (b"{ }" + sealed[2:], sealed[:-1] + b"g", b"{}", sealed + b"\n"):
        with pytest.raises(PayloadError, match="cron entry in aw:cron_entries:default was refused"):
            one.open(PLACE, changed)


def test_unsigned_value_is_accepted_unless_required():
    assert signatures().open(PLACE, b"{}") == b"{}"
    ruby = signatures(required=True, unsigned_queues=("ruby:*",))
    ruby.check(PLACE, b"{}", "", queue="ruby:mailers")
    for queue in ("", "default"):
        with pytest.raises(StateRefusedError, match="no signature"):
            ruby.check(PLACE, b"{}", "", queue=queue)


def test_process_without_keys_reads_signed_values():
    assert UNSIGNED_STATE.open(PLACE, signatures().seal(PLACE, b"{}")) == b"{}"
    assert UNSIGNED_STATE.seal(PLACE, b"{}") == b"{}"


def test_rotation_keeps_stored_values_valid():
    stored = signatures().seal(PLACE, b"{}")
    both = signatures({1: OLD, 2: NEW}, 2, required=True)
    assert both.open(PLACE, stored) == both.open(PLACE, both.seal(PLACE, b"{}")) == b"{}"
    with pytest.raises(MissingKeyError, match=r"no key of version 1 .* signatures\.keys"):
        signatures({2: NEW}, 2).open(PLACE, stored)


def keys_of(cell):
    """Return the keys that a cell of a table names."""
    return set(re.findall(r"`([^`]+)`", cell.replace("\\|", "!")))


def rows_of(text):
    return [
        re.split(r" \| ", line.replace("\\|", "!").strip("| "))
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("|---")
    ]


# A new key fails here, until the threat model says that it is signed, or what a client without the key can do with it.
def test_every_key_is_signed_or_listed_as_unsigned():
    page = (ROOT / "docs" / "operate" / "threat_model.md").read_text()
    section = page.partition("### Signed state")[2].partition("\n## ")[0]
    first, _, second = section.partition("What is not signed")
    signed, unsigned = rows_of(first)[1:], rows_of(second)[1:]
    all_keys = set().union(*(keys_of(row[0]) for row in rows_of(text_of("Keys")))) - {"Key"}
    with_signature = set().union(*(keys_of(row[1]) for row in signed))
    without = set().union(*(keys_of(row[0]) for row in unsigned))
    assert with_signature | without == all_keys
    assert with_signature & without == {"aw:batch:BID", "aw:workflow:ID"}
    # Each purpose has a row.
    purposes = {one for path in (ROOT / "framework").rglob("*.py") for one in PURPOSE.findall(path.read_text())}
    assert len(purposes) >= 7
    assert {one for one in purposes if not any(row[0].startswith(one) for row in signed)} == set()
