"""The flow: an algorithm as plain data. Nodes, channels, checks, bounds and drawings; no torch, no processes.

>>> from levada.flow import Flow, Queue
>>> flow = Flow("empty")
>>> [problem.code for problem in flow.problems()]
['LV100']
"""

from levada.flow.bounds import Bound
from levada.flow.channels import Latest, Prioritized, Queue, Replay
from levada.flow.deployment import Deployment, Run
from levada.flow.errors import (
    ChannelError,
    DeploymentError,
    FlowError,
    FlowWarning,
    LevadaError,
    LevadaInternalError,
    NameInUseError,
    NotSavedError,
    Problem,
    StreamError,
)
from levada.flow.events import (
    ChannelStatistics,
    Consumed,
    Dropped,
    Emptied,
    Evaluated,
    Evaluating,
    Event,
    Failed,
    Fired,
    Instrument,
    LagStatistics,
    LearnerStopped,
    Ledger,
    NodeStatistics,
    Published,
    ReplayStatistics,
    Report,
    Reported,
    Requeued,
    Statistics,
    Stored,
    Used,
)
from levada.flow.graph import Flow
from levada.flow.items import Draw, Episode, Experience, Header, Item, Shard, derive_seed
from levada.flow.nodes import Edge, Input, Node, Stream, Updates
from levada.flow.protocols import (
    Evaluation,
    FixedWeights,
    LearnerRecipe,
    LearnerState,
    Source,
    Stateful,
    Table,
    Update,
    close,
)
from levada.flow.replicas import Divisible, Replica, Replicable, ReplicaLostError
from levada.flow.state import RunState

__all__ = [
    "Bound", "ChannelError", "ChannelStatistics", "Consumed", "Deployment", "DeploymentError", "Divisible", "Draw",
    "Dropped", "Edge", "Emptied", "Episode", "Evaluated", "Evaluating", "Evaluation",
    "Event", "Experience", "Failed", "Fired", "FixedWeights", "Flow", "FlowError",
    "FlowWarning", "Header", "Input", "Instrument", "Item", "LagStatistics", "Latest", "LearnerRecipe", "LearnerState",
    "LearnerStopped", "Ledger",
    "LevadaError", "LevadaInternalError", "NameInUseError", "Node", "NodeStatistics", "NotSavedError", "Prioritized",
    "Problem", "Published", "Queue", "Replay", "ReplayStatistics", "Replica", "ReplicaLostError", "Replicable", "Report",
    "Reported", "Requeued", "Run", "RunState", "Shard", "Source", "Stateful", "Statistics", "Stored", "Stream",
    "StreamError", "Table", "Update", "Updates", "Used", "close", "derive_seed",
]  # fmt: skip
