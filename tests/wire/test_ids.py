import re

from framework.wire.ids import generate_jid, generate_jids


def test_jids_are_24_hex_digits_and_differ():
    drawn = [generate_jid(), *generate_jids(1000)]
    assert len(set(drawn)) == 1001
    assert all(re.fullmatch(r"[0-9a-f]{24}", jid) for jid in drawn)
    assert generate_jids(0) == []
