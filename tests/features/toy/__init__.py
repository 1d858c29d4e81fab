"""The record of a toy, which only tests have: the jobs with a label are counted as they end."""

from framework.feature import Feature, Hold, Late, LateCommand, Rights
from framework.features.toy.payload import LABEL

TOY = Feature(
    name="toy",
    payload=Late("framework.features.toy.payload:add_label"),
    rights={
        "worker": Rights(scripts=(Late("framework.features.toy.worker:COUNT"),)),
        "operator": Rights(commands=("hgetall",)),
    },
    holds=(Hold(name="toy", field=LABEL, part="toy/label", waiter=Late("framework.features.toy.waiter:WAITER")),),
    worker=Late("framework.features.toy.worker:worker_part"),
    notices=Late("framework.features.toy.explain:notices"),
    explain=Late("framework.features.toy.explain:LabelReader"),
    commands=(LateCommand("toy", "Show the counts of labels.", Late("framework.features.toy.commands:toy")),),
)
