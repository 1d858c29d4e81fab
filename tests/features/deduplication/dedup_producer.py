"""Push the same few keys of these classes for some seconds from sixteen threads, and print the accepted and dropped jobs."""

import json
import random
import sys
import threading
import time

import jobs

classes = [getattr(jobs, name) for name in sys.argv[2:]]
until = time.monotonic() + float(sys.argv[1])
accepted: list[str] = []
dropped = [0]
errors: list[str] = []
lock = threading.Lock()


def push() -> list[str | None]:
    worker = random.choice(classes)
    number = random.randrange(40 if issubclass(worker, jobs.ExecutingWorker) else 3)
    choice = random.random()
    if choice < 0.7:
        return [worker.perform_async(number)]
    if choice < 0.85:
        return [worker.set(queue="other").perform_in(0.05, number)]
    return worker.perform_bulk([(number,), (number,), *((number + more,) for more in range(1, 30))])


def push_until_the_end() -> None:
    try:
        while time.monotonic() < until:
            jids = push()
            with lock:
                accepted.extend(jid for jid in jids if jid)
                dropped[0] += jids.count(None)
            time.sleep(0.03)
    except Exception as error:
        errors.append(repr(error))


threads = [threading.Thread(target=push_until_the_end) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdout.write(json.dumps({"accepted": accepted, "dropped": dropped[0], "errors": errors}) + "\n")
