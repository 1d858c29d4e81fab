"""Test which keys a finished campaign may leave."""

from tests.proofs import leftover_keys
from tests.tables import each_row


@each_row(
    ("key", "ttl_s", "ends"),
    [
        ("aw:lease:sweep", 60, True),
        ("aw:lease:sweep", 61, False),
        ("aw:lease:sweep", -1, False),  # it would stay for ever
        ("aw:push:0af3", 600, True),
        ("aw:held_alert", 300, True),
        ("host:12:0af3:work", 61, False),
        ("queue:default", 10, False),  # such a key never expires
        ("queue:default", -2, True),  # gone between the scan and the check
    ],
)
def test_leftover_key_with_a_ttl_is_allowed(key, ttl_s, ends):
    assert leftover_keys._ends_soon(key, ttl_s) is ends
