"""The command ``dashboard``: without ``--authorize`` it serves this machine only."""

import pytest

from framework.dashboard.server import is_loopback, serve


@pytest.mark.parametrize("listen", ["0.0.0.0:7433", "[::]:7433", "192.168.0.1:80"])
def test_address_beyond_this_machine_needs_authorize(site, listen):
    done = site.run("-m", "framework", "dashboard", "--listen", listen)
    assert done.returncode == 2
    assert "--authorize" in done.stderr


def test_loopback_is_every_address_of_it():
    assert all(is_loopback(one) for one in ("127.0.0.1", "127.0.0.53", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(one) for one in ("0.0.0.0", "::", "10.0.0.1", "example.org"))
    with pytest.raises(ValueError, match="authorize"):
        serve("example.org", 80, None, "read")
