"""Run a producer in its own process: read ``[class, args]`` per line, push, and print the result as one JSON line.

``began`` and ``ended`` are the times of the push, by the machine's monotonic clock.
"""

import json
import sys
import time

import jobs

from framework import FrameworkError

for line in sys.stdin:
    name, args = json.loads(line)
    began = time.monotonic()
    try:
        worker = getattr(jobs, name)
        answer = {"jid": worker.perform_async(*args)}
    except FrameworkError as error:
        answer = {
            "error": type(error).__name__,
            "text": str(error),
            "maybe_written": getattr(error, "maybe_written", None),
            "shard": getattr(error, "shard", None),
        }
    except Exception as error:
        answer = {"error": f"untyped {error!r}"}
    sys.stdout.write(json.dumps(answer | {"began": began, "ended": time.monotonic()}) + "\n")
    sys.stdout.flush()
