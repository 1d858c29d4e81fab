"""Define the record of the simulation: what a fleet would do under a load, a limit, a rule, a deploy or an outage."""

from framework.feature import Feature, Late, LateCommand

SIMULATION = Feature(
    name="simulation",
    commands=(
        LateCommand(
            "simulate",
            "Predict waiting times, backlogs and Redis's load of a scenario.",
            Late("framework.features.simulation.commands:simulate"),
        ),
    ),
)
"""``simulate``: run the routing, limits, weights, fairness and autoscaling of an installation on given or recorded jobs."""
