import os
import threading

from framework.telemetry.writer import MAX_PENDING, LogWriter
from tests.harness import until


def test_a_blocked_output_never_blocks_the_writer_and_old_lines_give_way():
    reader, descriptor = os.pipe()
    writer = LogWriter(descriptor)
    line = b"x" * 99 + b"\n"
    total = MAX_PENDING + 50_000
    for _ in range(total):
        writer.write(line)  # nobody reads: this must not hang
    assert not writer.flush(timeout_s=0.05)
    received = []

    def drain():
        with os.fdopen(reader, "rb") as pipe:
            received.extend(pipe)

    thread = threading.Thread(target=drain)
    thread.start()
    until(lambda: writer.flush(timeout_s=1.0), "the queued lines to be written")
    writer.close()
    os.close(descriptor)
    thread.join()
    assert set(received) == {line}  # whole lines only
    assert MAX_PENDING <= len(received) < total


def test_a_reader_that_is_gone_costs_nothing():
    reader, descriptor = os.pipe()
    os.close(reader)
    writer = LogWriter(descriptor)
    writer.write(b"nobody reads this\n")
    assert writer.flush()
    writer.close()
    os.close(descriptor)
