"""The schedule: pure state machines that every runner drives. Events in, instructions out; no I/O, clocks or threads.

Hub             the state shared by all shards: queues, registers, the central nodes; issues tickets
ShardMachine    one shard: works on its tickets without communication
"""

from levada.schedule.events import (
    Begin,
    Closed,
    Evaluate,
    Event,
    Finished,
    Firing,
    Forget,
    HandedOver,
    HubInstruction,
    Insert,
    Instruction,
    Issue,
    ItemsLost,
    LearnerFailed,
    Notify,
    Output,
    Publish,
    PublishAgain,
    Read,
    Reprioritize,
    ShardsLost,
    Start,
    TableLost,
    Ticket,
)
from levada.schedule.hub import Hub
from levada.schedule.limiter import ReplayLimiter
from levada.schedule.queues import QueueMachine
from levada.schedule.registers import RegisterMachine
from levada.schedule.replays import ReplayMachine
from levada.schedule.saving import restore_snapshot, take_snapshot
from levada.schedule.shards import ShardMachine
from levada.schedule.snapshot import Snapshot
from levada.schedule.stages import NodeMachine, StageMachine

__all__ = [
    "Begin",
    "Closed",
    "Evaluate",
    "Event",
    "Finished",
    "Firing",
    "Forget",
    "HandedOver",
    "Hub",
    "HubInstruction",
    "Insert",
    "Instruction",
    "Issue",
    "ItemsLost",
    "LearnerFailed",
    "NodeMachine",
    "Notify",
    "Output",
    "Publish",
    "PublishAgain",
    "QueueMachine",
    "Read",
    "RegisterMachine",
    "ReplayLimiter",
    "ReplayMachine",
    "Reprioritize",
    "ShardMachine",
    "ShardsLost",
    "Snapshot",
    "StageMachine",
    "Start",
    "TableLost",
    "Ticket",
    "restore_snapshot",
    "take_snapshot",
]  # fmt: skip
