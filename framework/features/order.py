"""List the features in their order.

The order is that of steps of a push, of admissions of one stage, of periodic work, and of the parts of assembled scripts. Each line
says why it stands where it stands, if it matters.
"""

from framework.feature import Feature
from framework.features.backlog import BACKLOG
from framework.features.batches import BATCHES
from framework.features.breaker import BREAKER
from framework.features.concurrency import CONCURRENCY
from framework.features.consistency import CONSISTENCY
from framework.features.cron import CRON
from framework.features.deduplication import DEDUPLICATION
from framework.features.deferral import DEFERRAL
from framework.features.deployment import DEPLOYMENT
from framework.features.encryption import ENCRYPTION
from framework.features.fairness import FAIRNESS
from framework.features.flags import FLAGS
from framework.features.health import HEALTH
from framework.features.history import HISTORY
from framework.features.isolation import ISOLATION
from framework.features.iteration import ITERATION
from framework.features.leases import LEASES
from framework.features.limiters import LIMITERS
from framework.features.moves import MOVES
from framework.features.observability import OBSERVABILITY
from framework.features.packing import PACKING
from framework.features.pause import PAUSE
from framework.features.profiling import PROFILING
from framework.features.reliable_push import RELIABLE_PUSH
from framework.features.results import RESULTS
from framework.features.simulation import SIMULATION
from framework.features.status import STATUS
from framework.features.tasks import TASKS
from framework.features.tracing import TRACING
from framework.features.workflows import WORKFLOWS

FEATURES: tuple[Feature, ...] = (
    # Before what defers: a held job costs nothing, and a deferred one comes back repeatedly.
    PAUSE,
    # After pauses: a job that an operator holds is no probe.
    BREAKER,
    # After pauses: a job that resumes waits for its slot in the same round.
    CONCURRENCY,
    DEFERRAL,
    # Last of what delays: it asks the application's databases.
    HEALTH,
    # Before consistency, which has to see the positions of the dropped duplicates.
    DEDUPLICATION,
    CONSISTENCY,
    # After pauses: their strategies are polled even while Redis does not answer the read of the flags.
    FLAGS,
    CRON,
    ENCRYPTION,
    RELIABLE_PUSH,
    LEASES,
    LIMITERS,
    # The caller of a job is told before its batch: a callback of the batch finds the answer.
    RESULTS,
    BATCHES,
    WORKFLOWS,
    TASKS,
    FAIRNESS,
    PROFILING,
    # After what adds payload fields of its own: those of a trace are the last.
    TRACING,
    ISOLATION,
    ITERATION,
    STATUS,
    BACKLOG,
    PACKING,
    MOVES,
    DEPLOYMENT,
    SIMULATION,
    HISTORY,
    # Last: it only reads.
    OBSERVABILITY,
)
