"""The schedule: pure state machines that every runner drives. Events in, instructions out; no I/O, clocks or threads."""

from levada.schedule.events import (
    Begin,
    Event,
    Finished,
    Firing,
    Forget,
    Instruction,
    Lost,
    Output,
    Publish,
    Read,
    Start,
    Tell,
)
from levada.schedule.limiter import ReplayLimiter
from levada.schedule.queues import QueueMachine
from levada.schedule.registers import RegisterMachine
from levada.schedule.schedule import Schedule
from levada.schedule.stages import NodeMachine, StageMachine

__all__ = [
    "Begin", "Event", "Finished", "Firing", "Forget", "Instruction", "Lost", "NodeMachine", "Output", "Publish",
    "QueueMachine", "Read", "RegisterMachine", "ReplayLimiter", "Schedule", "StageMachine", "Start", "Tell",
]  # fmt: skip
