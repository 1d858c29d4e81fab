"""Signatures: every covered field, keys of a rotation, required and allowed queues; no payload can claim to be checked."""

import pytest

from framework.errors import MissingKeyError, PayloadError
from framework.features.batches.payload import KEPT
from framework.features.cron.payload import CRON
from framework.features.encryption import signatures as signatures_module
from framework.features.encryption.signatures import KeyVersions, PayloadSignatures
from framework.features.results.payload import RESULT
from framework.telemetry.context import CORRELATION_ID
from framework.wire.job import BATCH_EVENT, BID
from framework.wire.json import dumps, loads

OLD, NEW = b"1" * 32, b"2" * 32


def signatures(keys=None, active=1, **options):
    return PayloadSignatures(KeyVersions(active, keys or {1: OLD}), **options)


def signed(keys=None, active=1):
    payload = {"class": "Job", "jid": "a" * 24, "args": [1, 1.5, "é", {"b": None, "a": [2**70]}], "queue": "default"}
    signatures(keys, active).sign(payload)
    return loads(dumps(payload))


def test_signed_job_is_accepted_twice():
    payload, one = signed(), signatures(required=True)
    one.check(payload, "default")
    # The run decompresses the arguments between the two.
    payload["args"] = ["changed by this process"]
    one.check(payload, "default")


def test_changed_job_is_refused():
    changes = [
        {"class": "Other"},
        {"jid": "b" * 24},
        {"version": 1},
        {"args": [1, 1.5, "é", {"a": [2**70], "b": None}]},
        {"args": []},
        {"compressed": True},
        {"original_job_size_bytes": 5},
        {"encrypt": True},
        {"aw_encryption_key": "1.aa"},
        {"aw_signature": None, "args": []},
        {"aw_signature": "verified"},
        {"aw_signature": 7},
        {"aw_signature": "1.00000000." + "0" * 63},
        {"aw_signature": "é"},
    ]
    for change in changes:
        with pytest.raises(PayloadError, match=r"signature"):
            signatures(required=True).check({**signed(), **change}, "default")


def test_fields_that_moves_change_are_not_covered():
    payload = {**signed(), "queue": "other", "enqueued_at": 5.0, "retry_count": 3, "error_message": "x"}
    signatures(required=True).check(payload, "other")


def test_unsigned_job_runs_unless_signatures_are_required():
    payload = {"class": "Job", "args": []}
    signatures().check(payload, "default")
    required = signatures(required=True, unsigned_queues=("ruby:*",))
    required.check(payload, "ruby:mailers")
    with pytest.raises(PayloadError, match="no signature"):
        required.check(payload, "default")


def test_wrong_signature_is_refused_where_none_is_needed():
    with pytest.raises(PayloadError, match="signature is wrong"):
        signatures(unsigned_queues=("*",)).check({**signed(), "args": []}, "default")


def test_rotation_accepts_jobs_of_both_keys():
    both = signatures({1: OLD, 2: NEW}, 2, required=True)
    both.check(signed(), "default")
    both.check(signed({2: NEW}, 2), "default")


@pytest.mark.parametrize("keys", [{2: NEW}, {1: NEW}], ids=["no such version", "another key"])
def test_missing_key_is_named(keys):
    with pytest.raises(MissingKeyError, match=r"signatures\.keys"):
        signatures(keys, min(keys)).check(signed(), "default")


def test_options_of_the_application_are_covered_by_name():
    options = {"plan", "region"}
    payload = {"class": "Job", "jid": "a" * 24, "args": [], "plan": "free", "meta.user": "ada"}
    signatures(option_fields=lambda: options).sign(payload)
    stored = loads(dumps(payload))
    # A process of another release knows no option, or more of them.
    for known in ((), options, {*options, "tier"}):
        signatures(option_fields=lambda known=known: known, required=True).check(dict(stored), "default")
    for change in ({"plan": "paid"}, {"region": "eu"}, {"meta.user": "root"}, {"meta.team": "x"}):
        with pytest.raises(PayloadError, match="signature"):
            signatures(option_fields=lambda: options).check({**stored, **change}, "default")
    without = {**stored, "aw_signature": stored["aw_signature"].partition(":")[0]}
    assert not signatures().accepts(without, "default")


def test_fields_of_features_are_signed_in_a_fixed_order():
    """A signature covers the values in this order: another one would refuse the jobs of a release before."""
    assert signatures_module._SIGNED_FIELDS[-6:] == (BID, KEPT, BATCH_EVENT, RESULT, CRON, CORRELATION_ID)
