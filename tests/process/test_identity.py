import os
import re
import socket

import pytest

from framework.process.identity import NONCE_VARIABLE, draw_nonce, identity_of, own_identity


@pytest.mark.proves("R65")
def test_identity_has_the_form_of_sidekiq(monkeypatch):
    monkeypatch.delenv("DYNO", raising=False)
    monkeypatch.delenv(NONCE_VARIABLE, raising=False)
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}:{os.getpid()}:[0-9a-f]{{12}}", own_identity())
    assert own_identity() != own_identity()
    monkeypatch.setenv("DYNO", "worker.1")
    assert identity_of(7, "abc") == "worker.1:7:abc"


@pytest.mark.proves("R65")
def test_identity_uses_the_supervisors_nonce_once(monkeypatch):
    nonce = draw_nonce()
    monkeypatch.setenv(NONCE_VARIABLE, nonce)
    assert own_identity().endswith(f":{nonce}")
    assert NONCE_VARIABLE not in os.environ
    assert not own_identity().endswith(f":{nonce}")
