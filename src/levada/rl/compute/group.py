"""A group of processes that add and exchange tensors: gloo between processors, NCCL between GPUs.

One process listens, and all connect at the same time. Every pair is connected at once, so that a process that ends is noticed by
all that wait for it. An operation that fails or times out leaves the group broken; a new one is formed at a new address.

>>> rendezvous = Rendezvous("127.0.0.1")
>>> group = Group(rendezvous.address, 0, 1, torch.device("cpu"), timeout_s=10.0, rendezvous=rendezvous)
>>> [rows.tolist() for rows in group.gather_rows(torch.tensor([[1, 2]]))]
[[[1, 2]]]
"""

from __future__ import annotations

import math
import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from levada.flow.replicas import ReplicaLostError
from levada.rl.compute.torch_private import gloo_group

dist: Any = torch.distributed

_JOIN_S = 300.0
"""Time limit of the store before `Group` sets its own."""


class Rendezvous:
    """The place where the processes of a group find one another, on a free port of a host."""

    def __init__(self, host: str) -> None:
        """Listen. OSError: the host has no such address."""
        listening = socket.create_server((host, 0), family=_family(host, 0))
        port = listening.getsockname()[1]
        self.address: str = f"{host}:{port}"
        self.store: Any = dist.TCPStore(
            host, port, is_master=True, timeout=timedelta(seconds=_JOIN_S), wait_for_workers=False,
            master_listen_fd=listening.detach(),  # on this address alone; torch would listen on all
        )  # fmt: skip


class Group:
    """The processes of a group, seen from one of them. Tensors are those of one device."""

    def __init__(
        self, address: str, rank: int, size: int, device: torch.device, *, timeout_s: float,
        rendezvous: Rendezvous | None = None,
    ) -> None:  # fmt: skip
        """Connect all processes. ReplicaLostError: not all came in time.

        Args:
            address: where rank 0 listens, ``host:port``.
            rank: number of this process, from 0.
            size: number of processes.
            device: device of all tensors.
            timeout_s: time limit of each operation, and of connecting.
            rendezvous: the rendezvous of this address, at rank 0.
        """
        self.rank = rank
        self.size = size
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._rendezvous = rendezvous  # NCCL uses the store later on
        self._group: Any = None
        try:
            self._group = self._connected(address, rendezvous)
        except (RuntimeError, OSError) as error:
            raise self._lost("connect", error) from error
        self.add(torch.zeros(1, device=device))  # waits for all

    def add(self, vector: Tensor) -> None:
        """Replace a vector by the sum over all processes; the bits are the same in all of them."""
        self._wait("add", lambda group: group.allreduce([vector]))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have one shape, by rank."""
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        self._wait("gather", lambda group: group.allgather([found], [tensor]))
        return found

    def gather_rows(self, rows: Tensor) -> list[Tensor]:
        """Return the tensors ``[n, ...]`` of all processes, by rank; n may differ."""
        lengths = [int(length) for length in self.gather(torch.tensor([len(rows)], device=self._device))]
        width = rows.element_size() * math.prod(rows.shape[1:])
        padded = torch.zeros(max(lengths) * width, dtype=torch.uint8, device=self._device)
        padded[: len(rows) * width] = rows.contiguous().view(-1).view(torch.uint8)  # as bytes, whatever the dtype
        found = self.gather(padded)
        return [
            one[: length * width].view(rows.dtype).view(length, *rows.shape[1:])
            for one, length in zip(found, lengths, strict=True)
        ]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of all processes, by rank."""
        rows = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return [found.cpu().numpy().tobytes() for found in self.gather_rows(rows)]

    def close(self) -> None:
        """Disconnect; the others notice."""
        self._group = self._rendezvous = None

    # ---- inside

    def _connected(self, address: str, rendezvous: Rendezvous | None) -> Any:
        host, _, port = address.rpartition(":")
        if rendezvous is not None:
            store = rendezvous.store
            store.set_timeout(self._timeout)
        else:
            store = dist.TCPStore(host, int(port), is_master=False, timeout=self._timeout, wait_for_workers=False)
        if self._device.type == "cuda":
            # by default torch would end the whole process when another one is lost
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
            torch.cuda.set_device(self._device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        return gloo_group(store, self.rank, self.size, self._timeout, _own_address(host, int(port)))

    def _wait(self, what: str, start: Any) -> None:
        if self._group is None:
            msg = f"replica {self.rank} of {self.size}: its group is lost; join a new one"
            raise ReplicaLostError(msg)
        try:
            if self._device.type == "cuda":
                start(self._group).wait(self._timeout)
            else:
                start(self._group).wait()
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: Exception) -> ReplicaLostError:
        self.close()
        reason = str(error).strip().partition("\n")[0]
        return ReplicaLostError(
            f"replica {self.rank} of {self.size} lost the others ({what}: {reason}). Likely: the process of another one has "
            f"ended, or did nothing for {self._timeout.total_seconds():g} s"
        )


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]


def _own_address(host: str, port: int) -> str:
    """Return the address of this machine on the network that leads to a host."""
    family, kind, protocol, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)  # sends nothing
        return str(probe.getsockname()[0])
