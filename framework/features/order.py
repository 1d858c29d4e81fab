"""List the features in their order.

The order is that of steps of a push, of admissions of one stage, and of the parts of assembled scripts. Each line says why it
stands where it stands, if it matters.
"""

from framework.feature import Feature

FEATURES: tuple[Feature, ...] = ()
