"""Define the record of results."""

from framework.feature import Feature, Hold, Late
from framework.wire.result_fields import RESULT, WAIT_S

RESULTS = Feature(
    name="results",
    holds=(
        Hold(
            name="answer",
            field=RESULT,
            part="results/answer",
            waiter=Late("framework.features.results.waiter:WAITER"),
            keeps_state_s=WAIT_S,
        ),
    ),
)
