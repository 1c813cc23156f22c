"""Checksums of the records of event files."""

import random

import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as by_tensorboard

from levada.run.storage.crc32c import crc32c


@pytest.mark.parametrize("num_bytes", [*range(10), 400, 1023, 1024, 1025, 1027, 1028, 3000])
def test_it_is_that_of_tensorboard(num_bytes):
    data = random.Random(num_bytes).randbytes(num_bytes)
    assert crc32c(data) == by_tensorboard(data)
