"""An iterable class for tests: it notes its items and hooks, and acts at an item as the test says."""

from framework.features.iteration.iterable import IterableWorker


def iterable(count, act=lambda self, item: None, **attributes):
    """Return a class whose items are 0 to ``count`` - 1, and the list of what it has done."""
    done = []

    def noting(name):
        return lambda self: done.append(name)

    def build_enumerator(self, *, cursor):
        return ((number, number) for number in range(cursor or 0, count))

    def each_iteration(self, item):
        done.append(item)
        act(self, item)

    hooks = {f"on_{name}": noting(name) for name in ("start", "resume", "stop", "cancel", "complete")}
    body = {"feature_category": "not_owned", "wire_name": "Job", "__module__": "tests.jobs", **hooks}
    body |= {"build_enumerator": build_enumerator, "each_iteration": each_iteration, **attributes}
    return type("JobWorker", (IterableWorker,), body), done


def async_iterable(count, act, **attributes):
    """Return the same on the event loop; ``act`` is awaited."""

    async def build_enumerator(self, *, cursor):
        for number in range(cursor or 0, count):
            yield number, number

    async def each_iteration(self, item):
        done.append(item)
        await act(self, item)

    body = {"build_enumerator": build_enumerator, "each_iteration": each_iteration, **attributes}
    made, done = iterable(count, **body)
    return made, done
