"""Register pause strategies of the application for ``pause_control``, in addition to ``none``, ``deprecated`` and ``manual``.

    from framework.pause import register

    class Reindexing:
        def should_pause(self) -> bool:
            return index_rebuild_is_running()

    register("reindexing", Reindexing)

``should_pause`` is called every few seconds in each worker process, in a thread of its own. A complete example is in
docs/guides/pause.md.
"""

from framework.features.pause.strategies import PauseStrategy, register

__all__ = ["PauseStrategy", "register"]
