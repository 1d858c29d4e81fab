"""Send what a process counts to a StatsD server, by UDP: the counts of each second, and the gauges."""

import socket
import time
from collections.abc import Iterator, Mapping

from framework.features.observability.catalogue import METRICS
from framework.features.observability.samples import process_samples
from framework.features.observability.settings import MetricsSettings
from framework.features.observability.tally import Tally
from framework.supervised_threads import SupervisedThread
from framework.telemetry.logs import LogRateLimit

PERIOD_S = 1.0
PACKET_BYTES = 1_432
"""The most bytes of a packet: what an Ethernet carries in one piece."""

_FORBIDDEN = str.maketrans(dict.fromkeys(",|#:\n", "_"))
_LOG_INTERVAL_S = 600.0


class StatsdSender:
    """Send from a thread of its own. A packet that the system does not take at once is lost, and nothing waits for it."""

    def __init__(self, tally: Tally, settings: MetricsSettings) -> None:
        host, _, port = (settings.statsd or "").rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._has_tags = settings.statsd_format == "dogstatsd"
        self._tally = tally
        self._sent: dict[tuple[str, str], float] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def start(self) -> None:
        SupervisedThread("statsd", self._run).start()

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            self.send()

    def send(self) -> None:
        """Send what has been counted since the last time. Raises nothing of the network."""
        try:
            family, kind, _, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as to:
                to.setblocking(False)
                for packet in packets(self.lines()):
                    to.sendto(packet, address)
        except OSError as error:
            self._log_limit.warning(
                "statsd",
                "metrics were not sent to the StatsD server, and are lost. Check metrics.statsd",
                "statsd.failed",
                address=":".join(map(str, self._address)),
                error=error,
            )

    def lines(self) -> Iterator[str]:
        """Yield the lines of counters that have grown, and of all gauges."""
        values, gauges = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
        for one in process_samples(self._tally.sums(), self._tally.mode):
            if one.name.endswith("_bucket"):
                continue
            found = gauges if METRICS[one.metric].kind == "gauge" else values
            key = one.name, _tags(one.labels) if self._has_tags else ""
            found[key] = found.get(key, 0.0) + one.value
        for (name, tags), value in values.items():
            grown = value - self._sent.get((name, tags), 0.0)
            if grown > 0:
                yield f"{name}:{grown:.9g}|c{tags}"
        for (name, tags), value in gauges.items():
            yield f"{name}:{value:.9g}|g{tags}"
        self._sent = values


def _tags(labels: Mapping[str, str]) -> str:
    shown = [f"{name}:{value.translate(_FORBIDDEN)}" for name, value in labels.items() if value]
    return f"|#{','.join(shown)}" if shown else ""


def packets(lines: Iterator[str]) -> Iterator[bytes]:
    """Yield the lines in as few packets as possible."""
    packet = b""
    for line in lines:
        added = line.encode(errors="replace")
        if packet and len(packet) + 1 + len(added) > PACKET_BYTES:
            yield packet
            packet = added
        else:
            packet = packet + b"\n" + added if packet else added
    if packet:
        yield packet
