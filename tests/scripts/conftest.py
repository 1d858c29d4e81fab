import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.scripts.demo_command import Demo


@pytest.fixture
def make_demo(short_path: Path) -> Iterator[Callable[[str], Demo]]:
    made: list[Demo] = []

    def make(name: str) -> Demo:
        made.append(Demo(short_path / name))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        if one.process is not None and one.process.stdout is not None:
            one.process.stdout.close()
        for pid in one.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def demo(make_demo: Callable[[str], Demo]) -> Demo:
    return make_demo("var")
