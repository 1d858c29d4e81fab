"""Define the record of results."""

from framework.feature import Feature, Hold, Late, Rights
from framework.features.results.keys import result_calls
from framework.features.results.payload import RESULT, WAIT_S
from framework.wire.keys import result

RESULTS = Feature(
    name="results",
    places={result(""): "results", result_calls(""): "results"},
    explain=Late("framework.features.results.explain:ResultReader"),
    payload=Late("framework.features.results.push:add_fields"),
    rights={
        "producer": Rights(keys=(result("*"), result_calls("*")), commands=("blpop", "lpop", "get", "mget", "set"))
    },
    holds=(
        Hold(
            name="answer",
            field=RESULT,
            part="results/answer",
            waiter=Late("framework.features.results.payload:WAITER"),
            follows=True,
            keeps_state_s=WAIT_S,
        ),
    ),
)
