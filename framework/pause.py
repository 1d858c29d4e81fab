"""For pause strategies of the application's own: what ``pause_control`` names besides ``none``, ``deprecated`` and ``manual``.

    from framework.pause import register

    class Reindexing:
        def should_pause(self) -> bool:
            return search_is_being_rebuilt()

    register("reindexing", Reindexing)

``should_pause`` is called every few seconds in each worker process, beside the jobs; docs/operate/pausing_and_deferring.md has
a whole example.
"""

from framework.policies.pause.strategies import PauseStrategy, register

__all__ = ["PauseStrategy", "register"]
