"""Let one holder at a time do a piece of work, over all processes: exclusive leases, as GitLab has them.

    from framework import lease

    IMPORT = lease.Lease("nightly_import", timeout=timedelta(minutes=10))

    with IMPORT.hold(wait=5) as held:
        for page in pages:
            held.renew()
            ...

A lease that another holder has raises ``LeaseTakenError`` after ``wait``. ``IMPORT.obtain()`` returns ``None`` instead, at once. A
lease that has ended before its work raises ``LeaseLostError``. ``async with IMPORT.ahold()`` is the same for async code.

The state of a lease is on one shard, for all processes: that which ``shard`` names, else that with the role ``meta``, else ``main``.
"""

from framework.errors import LeaseLostError, LeaseTakenError
from framework.features.leases.lease import HeldLease, Lease, LeaseHolder

__all__ = ["HeldLease", "Lease", "LeaseHolder", "LeaseLostError", "LeaseTakenError"]
