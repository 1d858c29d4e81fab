"""Run a worker inside of another Python process: a script, a web server, a test.

    from framework.embedding import EmbeddedWorker

    with EmbeddedWorker(["default", "mails"], concurrency=2):
        ...                             # jobs run in threads of this process

It takes no signals, and does not change stdout, the title or the logging of the process: its lines go to the logger ``framework``.
Dashboards show it as embedded, and cannot stop it.
"""

from framework.wiring.embedded_worker import EmbeddedWorker

__all__ = ["EmbeddedWorker"]
