"""Find Prometheus and promtool, and run a Prometheus."""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.harness import until


def _found(program: str) -> str:
    """Return the path of a program of Prometheus; skip the test without it, but never in CI."""
    path = shutil.which(program)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no {program}, and this run may not do without: run `scripts/setup --system`")
        pytest.skip(f"no {program}: Prometheus has not checked it (`scripts/setup --system` brings it)")
    return path


@pytest.fixture(scope="session")
def promtool() -> str:
    return _found("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _found("prometheus")


class PrometheusServer:
    """A real Prometheus that scrapes targets once a second, with written rules."""

    def __init__(self, prometheus: str, folder: Path, targets: dict[str, str], rules: Path) -> None:
        """Start it; ``targets``: the address of each job."""
        self._port = free_port()
        folder.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [address]}]} for name, address in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with (folder / "prometheus.log").open("wb") as log:
            self._popen = subprocess.Popen(
                [
                    prometheus,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    "--rules.alert.resend-delay=1s",
                ],
                stdout=log,
                stderr=log,
            )
        until(self._is_ready, "Prometheus is ready")

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def get(self, path: str, **parameters: object) -> Any:
        """Return the data of a reply of the API."""
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as reply:
            return json.load(reply)["data"]

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire now."""
        return [one["labels"] for one in self.get("alerts")["alerts"] if one["state"] == "firing"]

    def close(self) -> None:
        self._popen.terminate()
        self._popen.wait(30)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
