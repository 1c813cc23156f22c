"""Global PyTorch settings that levada does not work with."""

from __future__ import annotations

import torch


def problem() -> str | None:
    """Return a message with the first such setting and its remedy; None if there is none.

    >>> problem()
    >>> torch.set_default_dtype(torch.float64)
    >>> problem()
    "torch's default dtype is torch.float64, expected torch.float32; call torch.set_default_dtype(torch.float32) before"
    >>> torch.set_default_dtype(torch.float32)
    """
    if (dtype := torch.get_default_dtype()) is not torch.float32:
        return f"torch's default dtype is {dtype}, expected torch.float32; call torch.set_default_dtype(torch.float32) before"
    if (device := torch.get_default_device()).type != "cpu":
        return (
            f"torch's default device is {device}, expected cpu; call torch.set_default_device('cpu') before, and give the "
            "algorithm's field `device` where it is to learn"
        )
    if torch.is_inference_mode_enabled():
        return "torch.inference_mode() is on, in which nothing can be learned; leave its block before"
    if torch.is_autocast_enabled("cpu"):
        return "torch.autocast is on; leave its block before, and give the algorithm's field `precision`"
    return None
