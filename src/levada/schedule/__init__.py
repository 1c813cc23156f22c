"""The schedule: pure state machines that every runner drives. Events in, instructions out; no I/O, clocks or threads.

Schedule      everything behind one `handle`, for a runner in one place; consists of
Hub             the state shared by all shards: queues, registers, the nodes behind the queues; deals tickets
ShardMachine    one shard: works on its tickets without communication
"""

from levada.schedule.cut import Cut
from levada.schedule.events import (
    Begin,
    Closed,
    Deal,
    Event,
    Finished,
    Firing,
    Forget,
    HubInstruction,
    Insert,
    Instruction,
    Lost,
    Output,
    Publish,
    Read,
    Reprioritize,
    Start,
    TableLost,
    Tell,
    Ticket,
)
from levada.schedule.hub import Hub
from levada.schedule.limiter import ReplayLimiter
from levada.schedule.queues import QueueMachine
from levada.schedule.registers import RegisterMachine
from levada.schedule.replays import ReplayMachine
from levada.schedule.schedule import Schedule
from levada.schedule.shards import ShardMachine
from levada.schedule.stages import NodeMachine, StageMachine

__all__ = [
    "Begin", "Closed", "Cut", "Deal", "Event", "Finished", "Firing", "Forget", "Hub", "HubInstruction", "Insert",
    "Instruction", "Lost", "NodeMachine", "Output", "Publish", "QueueMachine", "Read", "RegisterMachine", "ReplayLimiter",
    "ReplayMachine", "Reprioritize", "Schedule", "ShardMachine", "StageMachine", "Start", "TableLost", "Tell", "Ticket",
]  # fmt: skip
