"""One upload at a time; of those that wait, the newest."""

import threading

from levada.run.storage.uploads import Uploads


class Slow:
    """Sends when it may."""

    def __init__(self):
        self.may = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.sent = []
        self.dropped = []
        self.num_at_once = 0
        self.most_at_once = 0

    def send(self, item):
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        self.begun.release()
        assert self.may.acquire(timeout=60)
        self.num_at_once -= 1
        if isinstance(item, BaseException):
            raise item
        self.sent.append(item)


def test_one_at_a_time_and_of_those_that_wait_the_newest():
    slow = Slow()
    uploads = Uploads(slow.send, slow.dropped.append)
    uploads.put(1)
    assert slow.begun.acquire(timeout=60)
    for item in (2, 3, 4):
        uploads.put(item)
    assert slow.dropped == [2, 3]
    assert not uploads.wait(0.0)
    slow.may.release(2)
    assert uploads.wait(60)
    assert (slow.sent, slow.dropped, slow.most_at_once) == ([1, 4], [2, 3, 1, 4], 1)
    uploads.put(5)
    slow.may.release()
    assert uploads.wait(60)
    assert slow.sent == [1, 4, 5]


def test_an_error_stays_until_an_upload_succeeds():
    slow = Slow()
    uploads = Uploads(slow.send, slow.dropped.append)
    slow.may.release(100)
    for error in (OSError("no network"), SystemExit(3)):
        uploads.put(error)
        assert uploads.wait(60)
        assert uploads.error is error
    uploads.put(1)
    assert uploads.wait(60)
    assert uploads.error is None
    assert slow.sent == [1] and len(slow.dropped) == 3


def test_nothing_put_nothing_to_wait_for():
    slow = Slow()
    assert Uploads(slow.send, slow.dropped.append).wait()
