"""Messages over sockets: whole, in order, and nobody sleeps who must not."""

import os

import pytest
from msgspec import Struct

from levada.runners.processes.ipc.signals import how_it_ended
from levada.runners.processes.ipc.wire import wires


@pytest.fixture
def ends():
    here, there = wires(Note)
    yield here, there
    here.close()
    there.close()


class Note(Struct, tag=True):
    text: str


def test_posting_never_sleeps_and_nothing_is_lost(ends):
    here, there = ends
    notes = [f"{number} " + 1000 * "x" for number in range(1000)]  # far more than a socket holds
    for text in notes:
        here.post(Note(text))
    assert here.has_posted
    seen = []
    while here.has_posted or len(seen) < len(notes):
        here.push()
        seen += [message.text for message, _ in there.take()]
    assert seen == notes
    assert there.take() == []


def test_descriptors_arrive_with_their_message_however_it_is_cut(ends):
    here, there = ends
    num_open = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        here.post(Note(f"{number}" + 20_000 * "x"), [os.dup(0) for _ in range(number % 3)])
    seen = []
    while len(seen) < 40:
        here.push()
        seen += [(message.text, descriptors) for message, descriptors in there.take()]
    assert [len(descriptors) for _, descriptors in seen] == [number % 3 for number in range(40)]
    for _, descriptors in seen:
        for descriptor in descriptors:
            os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_many_descriptors_at_once(ends):
    here, there = ends
    here.send(Note("many"), [os.dup(0) for _ in range(200)])
    [(_, descriptors)] = there.receive()
    assert len(set(descriptors)) == 200
    for descriptor in descriptors:
        os.close(descriptor)


def test_what_was_posted_and_not_sent_is_closed_with_the_wire():
    before = len(os.listdir("/proc/self/fd"))
    here, there = wires(Note)
    while not here.has_posted:
        here.post(Note(10_000 * "x"))
    here.post(Note("late"), [os.dup(0)])
    here.close()
    there.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_other_side(ends):
    here, there = ends
    there.close()
    with pytest.raises(EOFError):
        here.take()
    with pytest.raises(ConnectionError):
        here.post(Note("anyone?"))


def test_signals_without_a_name():
    assert [how_it_ended(-40), how_it_ended(-9), how_it_ended(3)] == ["by signal 40", "by SIGKILL", "with exit code 3"]
