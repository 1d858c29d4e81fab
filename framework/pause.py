"""Register pause strategies of the application: names for ``pause_control`` besides ``none``, ``deprecated`` and ``manual``.

    from framework.pause import register

    class Reindexing:
        def should_pause(self) -> bool:
            return search_is_being_rebuilt()

    register("reindexing", Reindexing)

``should_pause`` is called every few seconds in each worker process, in a thread of its own. A complete example is in
docs/operate/pausing_and_deferring.md.
"""

from framework.policies.pause.strategies import PauseStrategy, register

__all__ = ["PauseStrategy", "register"]
