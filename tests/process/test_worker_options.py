"""Too few file descriptors end the boot of a worker and of a supervisor with status 78; the error names the needed number."""

import subprocess
import sys

import pytest

from framework.errors import ConfigurationError
from framework.process import worker_options


@pytest.mark.parametrize("command", [("worker", "-q", "default"), ("cluster", "default")], ids=["worker", "cluster"])
def test_boot_with_16_descriptors_ends_with_78_and_the_need(cold_site, command):
    argv = f'ulimit -n 16; exec "{sys.executable}" -m framework {" ".join(command)} -r jobs'
    done = subprocess.run(
        ["sh", "-c", argv],
        cwd=cold_site.folder,
        env=cold_site.environment("worker"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 78, done.stderr
    assert "the limit is 16, and this process needs at least" in done.stderr
    for words in (
        "ulimit -n 1024",
        "LimitNOFILE=",
        "1 shard",
        "10 slots" if command[0] == "worker" else "1 process",
    ):
        assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(("limit", "refused"), [(55, True), (56, False), (-1, False)])
def test_descriptor_need_is_the_sum_of_its_parts(monkeypatch, limit, refused):
    monkeypatch.setattr(worker_options.resource, "getrlimit", lambda _: (limit, limit))
    if not refused:
        worker_options.check_worker(slots=10, queues=[8], shards=2)
        return
    with pytest.raises(ConfigurationError, match="32 of its own, 10 for 10 slots, 8 for 8 queues") as caught:
        worker_options.check_worker(slots=10, queues=[8], shards=2)
    assert f"the hard limit is {limit}" in str(caught.value)
