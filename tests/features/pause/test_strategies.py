"""Register pause strategies, and poll them."""

import subprocess
import sys
import textwrap

import pytest

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ConfigurationError
from framework.extensions import NamedExtensions
from framework.features.pause import strategies
from framework.features.pause.strategies import PauseStrategies
from framework.pause import register
from framework.route.router import checked_router
from framework.timings import STANDARD
from tests.harness import server_lines, until


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    empty = NamedExtensions[strategies.PauseStrategy]("pause strategy", "should_pause", strategies.BUILT_IN)
    monkeypatch.setattr(strategies, "registered", empty)
    return strategies.registered


class Says:
    def __init__(self, answer=True):
        self.answer = answer

    def should_pause(self):
        return self.answer


@pytest.mark.parametrize("name", ["none", "deprecated", "manual", "two words", "", None])
def test_register_strategy_invalid_name_is_refused(name):
    with pytest.raises(ValueError, match="pause strategy"):
        register(name, Says())


@pytest.mark.parametrize("invalid", [object(), lambda: True, "should_pause", int])
def test_register_strategy_without_method_is_refused(invalid):
    with pytest.raises(TypeError, match="should_pause"):
        register("one", invalid)


def test_register_strategy_class_is_instantiated_and_replaced(registered):
    register("one", Says)
    assert isinstance(registered["one"], Says)
    second = Says()
    register("one", second)
    assert registered["one"] is second


def test_strategy_unknown_name_refuses_to_boot():
    with registry.isolated():

        class ReindexWorker(ApplicationWorker):
            feature_category = "not_owned"
            pause_control = "reindxing"

            def perform(self):
                pass

        with pytest.raises(ConfigurationError) as caught:
            register("reindexing", Says())
            checked_router(load())
        assert "'reindxing' that is not registered (did you mean 'reindexing'?)" in str(caught.value)
        register("reindxing", Says())
        checked_router(load())


def test_strategies_last_result_counts_and_invalid_is_ignored():
    strategy = Says()
    asked = PauseStrategies(["one", "manual", "one"], {"one": strategy, "unused": Says()})
    assert not asked.is_paused("one")
    asked.poll()
    assert [asked.is_paused(name) for name in ("one", "manual", "unused", None)] == [True, False, False, False]
    assert not asked.is_pause_over("one")
    assert asked.is_pause_over("manual")
    with server_lines("info") as lines:
        for invalid in ("no", 0, None):
            strategy.answer = invalid
            asked.poll()
            until(lambda: asked._values["one"]._started_at is None)
            assert asked.is_paused("one")
        assert [line["exception.class"] for line in lines()] == ["TypeError"]
    strategy.answer = False
    asked.poll()
    until(lambda: not asked.is_paused("one"))
    asked._paused_at["one"] -= STANDARD.record_period_s
    assert asked.is_pause_over("one")


def test_background_value_in_forked_child_calls_again():
    text = """
        import os, time
        from framework.features.flags.flag import BackgroundValue
        go_on = []
        answer = BackgroundValue("it", lambda: (time.sleep(0 if go_on else 60), os.getpid())[1], 0)
        answer.refresh()
        child = os.fork()
        if not child:
            go_on.append(1)
            answer.refresh()
            answer.wait(20)
            os._exit(0 if answer.value == os.getpid() else 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(text)], check=False, timeout=60).returncode == 0
