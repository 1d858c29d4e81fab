import pytest
from prove_parts.machine.rules import machine_on
from prove_parts.machine.world import World


@pytest.fixture
def world(server, second_server, short_path):
    """Two servers, and processes that are simulated; see prove_parts/machine."""
    for one in (server, second_server):
        one.start()
    made = World(short_path, {"main": server, "second": second_server})
    made.open()
    yield made
    made.close()


@pytest.fixture
def state(world):
    """A history by hand, in the words in which hypothesis tells a counterexample; it ends with ``state.teardown()``."""
    machine = machine_on(world)()
    yield machine
    world.abandon()
