"""Build models for the tests of the simulation, without an installation."""

from framework.features.simulation.engine import Simulation
from framework.features.simulation.model import Model, SimulatedClass, SimulatedSet
from framework.features.simulation.scenario import FleetScenario, JobLoad, ProcessCount
from framework.features.simulation.store_costs import StoreCost
from framework.fetch.queues import QueueOrder

COST = StoreCost(push_us=1.0, run_us=4.0, waiting_bytes=400, traffic_bytes=1_000)


def job_class(name, queue="default", *, limit=None, urgency="low", retries=25, is_fair=False, shards=("main",), **load):
    return SimulatedClass(name, urgency, shards, queue, limit, JobLoad(**load), COST, retries, is_fair)


def process_set(queues=(("default", 1),), slots=10, *, name="main-all", timeout_s=25.0, shard="main", **count):
    processes = ProcessCount(**count)
    return SimulatedSet(name, "all", shard, QueueOrder.of(queues), slots, timeout_s, processes)


def simulated(classes, sets=None, *, keeps_pushes=False, recorded=(), seconds=600.0, **scenario):
    """Return the result of a scenario with these classes and sets."""
    sets = sets or [process_set()]
    given = FleetScenario(name="a test", seconds=seconds, **{"processor_of_job": 0.0, **scenario})
    groups = {"all": sorted({queue for one in sets for queue in one.order.names})}
    model = Model(
        given,
        {one.name: one for one in classes},
        {one.name: one for one in sets},
        groups,
        recorded,
        seconds,
        keeps_pushes,
    )
    return Simulation(model).run()
