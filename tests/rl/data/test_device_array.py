"""Arrays that stay on a device, with the processor as the device."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from levada.rl.data.device_array import DeviceArray
from levada.rl.learning.columns import to_tensors
from levada.rl.replay.transitions import Transitions, concatenate


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64, torch.bool])
def test_it_is_the_array(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(4, 3, 2).to(dtype)
    some, array = DeviceArray(tensor), tensor.numpy()
    assert (some.shape, some.ndim, some.dtype, len(some)) == (array.shape, array.ndim, array.dtype, len(array))
    index = np.array([2, 0]), np.array([1, 1])
    for one, other in (
        (some, array),
        (some[1:], array[1:]),
        (some[index], array[index]),
        (some.reshape(-1, 2), array.reshape(-1, 2)),
        (some.swapaxes(0, 1), array.swapaxes(0, 1)),
        (DeviceArray.join([some[1:], some[:1]]), np.concatenate([array[1:], array[:1]])),
        (pickle.loads(pickle.dumps(some)), array),
    ):
        np.testing.assert_array_equal(np.asarray(one), other, strict=True)
    assert some.sum() == array.sum()


def test_views_share_memory_and_a_learner_gets_the_tensor() -> None:
    tensor = torch.zeros(4, 2)
    rows = DeviceArray(tensor)[1:].reshape(-1)
    assert rows.tensor.data_ptr() == tensor[1:].data_ptr()
    columns = to_tensors(Transitions({"obs": DeviceArray(tensor), "mask": np.ones(4, np.bool_)}))
    assert columns["obs"] is tensor


def test_batches_are_joined_on_the_device() -> None:
    part = Transitions({"obs": {"a": DeviceArray(torch.ones(2, 3))}, "reward": np.ones(2, np.float32)})
    whole = concatenate([part, part])
    obs = whole.columns["obs"]
    assert isinstance(obs, dict) and isinstance(obs["a"], DeviceArray)
    assert whole.num_rows == 4
