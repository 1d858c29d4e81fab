import os
import socket

import pytest

from framework.cluster.runner import SystemdNotifier


@pytest.fixture
def systemd(monkeypatch):
    """Listen as systemd at an abstract address; yield a function that returns the received messages."""
    name = f"test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")

        def received():
            messages = []
            try:
                while True:
                    messages.append(listener.recv(4096).decode())
            except BlockingIOError:
                return messages

        yield received


def test_systemd_status_is_sent_once_per_change(systemd):
    one = SystemdNotifier()
    assert "NOTIFY_SOCKET" not in os.environ
    one.ready()
    for text in ("1 of 2", "1 of 2", "2 of 2"):
        one.status(text)
    one.ping_watchdog()
    one.reloading()
    one.stopping()
    messages = systemd()
    assert messages.pop(3).startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert messages == ["READY=1", "STATUS=1 of 2", "STATUS=2 of 2", "STOPPING=1"]


@pytest.mark.parametrize(("pid", "pings"), [("", 1), ("ours", 1), ("1", 0)])
def test_systemd_watchdog_is_pinged_only_for_own_pid(systemd, monkeypatch, pid, pings):
    monkeypatch.setenv("WATCHDOG_USEC", "3600000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "ours" else pid)
    one = SystemdNotifier()
    for _ in range(3):
        one.ping_watchdog()
    assert systemd() == ["WATCHDOG=1"] * pings
    one._pinged_at -= 1801
    one.ping_watchdog()
    assert systemd() == ["WATCHDOG=1"] * pings


def test_systemd_without_socket_or_listener_does_nothing(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    SystemdNotifier().ready()
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    SystemdNotifier().ready()
