"""List the features in their order.

The order is that of steps of a push, of admissions of one stage, of periodic work, and of the parts of assembled scripts. Each line
says why it stands where it stands, if it matters.
"""

from framework.feature import Feature
from framework.features.batches.feature import BATCHES
from framework.features.concurrency.feature import CONCURRENCY
from framework.features.consistency.feature import CONSISTENCY
from framework.features.cron.feature import CRON
from framework.features.deduplication.feature import DEDUPLICATION
from framework.features.deferral.feature import DEFERRAL
from framework.features.encryption.feature import ENCRYPTION
from framework.features.fairness.feature import FAIRNESS
from framework.features.flags.feature import FLAGS
from framework.features.health.feature import HEALTH
from framework.features.leases.feature import LEASES
from framework.features.limiters.feature import LIMITERS
from framework.features.pause.feature import PAUSE
from framework.features.profiling.feature import PROFILING
from framework.features.reliable_push.feature import RELIABLE_PUSH
from framework.features.results.feature import RESULTS
from framework.features.tasks.feature import TASKS
from framework.features.workflows.feature import WORKFLOWS

FEATURES: tuple[Feature, ...] = (
    # Before what defers: a held job costs nothing, and a deferred one comes back repeatedly.
    PAUSE,
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
)
