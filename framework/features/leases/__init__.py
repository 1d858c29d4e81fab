"""Define the record of leases."""

from typing import Any

from framework.feature import Feature, Figures, Late, LateCommand, Rights
from framework.features.leases import keys

_RENEW: Late[Any] = Late("framework.features.leases.store:RENEW")

LEASES = Feature(
    name="leases",
    bases=(Late("framework.features.leases.reenqueuer:ReenqueuerWorker"),),
    rights={
        "producer": Rights(
            keys=(keys.EXCLUSIVE_LEASES, keys.exclusive_lease("*")),
            scripts=(Late("framework.features.leases.store:OBTAIN"), _RENEW),
            commands=("hgetall", "pttl"),
        ),
        "operator": Rights(scripts=(_RENEW,)),
        "read-only": Rights(commands=("hgetall", "pttl", "zrangebyscore")),
    },
    figures=Figures(reader=Late("framework.features.leases.figures:LeaseFigures"), part="leases/figures"),
    pages=(Late("framework.features.leases.page:LeasesPage"),),
    job_commands=(
        LateCommand(
            "leases",
            "Show and end the exclusive leases of the application, which code takes with framework.lease.",
            Late("framework.features.leases.commands:leases"),
        ),
    ),
)
