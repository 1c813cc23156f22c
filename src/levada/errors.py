"""Errors and warnings that levada raises on purpose.

A user's mistake is also a ValueError or a TypeError, and is found before anything starts. `LevadaInternalError` is a broken
invariant of levada itself: please report it.

    LevadaError
    ├── AlgorithmError(ValueError)
    ├── ChannelError(ValueError)
    ├── CheckpointError(ValueError)
    │   └── UnreadableError
    ├── ClosedError(ValueError)
    ├── ComparisonError(ValueError)
    ├── ConfigError(ValueError)
    ├── DeploymentError(ValueError)
    ├── DeviceError(ValueError)
    ├── EnvError(RuntimeError)
    ├── ExitError(RuntimeError)
    ├── ExportError(ValueError)
    ├── FlowError(ValueError)
    ├── HubError(ValueError)
    ├── ItemLostError
    ├── IteratorEndedError(RuntimeError)
    ├── LoadError(ValueError)
    ├── LogError(ValueError)
    ├── MinibatchError(ValueError)
    ├── ModelError(ValueError)
    ├── NameInUseError(ValueError)
    ├── NonFiniteError(ArithmeticError)
    ├── NotSavedError(RuntimeError)
    ├── OptimizerError(ValueError)
    ├── OptionError(TypeError)
    ├── RecordError(TypeError)
    ├── RemoteError(RuntimeError)
    ├── ReplicaLostError
    ├── ReplicasDifferError(RuntimeError)
    ├── RunDirectoryError(ValueError)
    ├── SizeError(ValueError)
    ├── SpaceError(ValueError)
    ├── StartError(ValueError)
    ├── StatisticsError(ArithmeticError)
    ├── StopError(ValueError)
    ├── StrayError(RuntimeError)
    ├── StreamError(TypeError)
    ├── StuckError(RuntimeError)
    ├── SweepError(ValueError)
    ├── TableLostError
    ├── TaskError(ValueError)
    ├── UntilError(ValueError)
    ├── UntrustedError(ValueError)
    ├── UploadError(RuntimeError)
    ├── WeightsError(ValueError)
    ├── WeightsGrownError(ValueError)
    ├── WorkError(TypeError)
    └── WorkerError(RuntimeError)
    LevadaInternalError(AssertionError)
    DtypeError(TypeError)
    RangeError(ValueError)
    ShapeError(ValueError)
    FlowWarning(UserWarning)
    CheckpointWarning(UserWarning)
    LoggerWarning(UserWarning)

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._lazy import lazy

if TYPE_CHECKING:
    from levada.algorithms.checks import ConfigError as ConfigError
    from levada.algorithms.user_classes import AlgorithmError as AlgorithmError
    from levada.api.load import LoadError as LoadError
    from levada.api.options import OptionError as OptionError
    from levada.comparison.records import ComparisonError as ComparisonError
    from levada.flow import ChannelError as ChannelError
    from levada.flow import DeploymentError as DeploymentError
    from levada.flow import FlowError as FlowError
    from levada.flow import FlowWarning as FlowWarning
    from levada.flow import LevadaError as LevadaError
    from levada.flow import LevadaInternalError as LevadaInternalError
    from levada.flow import NameInUseError as NameInUseError
    from levada.flow import NotSavedError as NotSavedError
    from levada.flow import ReplicaLostError as ReplicaLostError
    from levada.flow import StreamError as StreamError
    from levada.flow.strays import StrayError as StrayError
    from levada.hub.repository import HubError as HubError
    from levada.math import DtypeError as DtypeError
    from levada.math import RangeError as RangeError
    from levada.math import ShapeError as ShapeError
    from levada.onnx.write import ExportError as ExportError
    from levada.rl import EnvError as EnvError
    from levada.rl import NonFiniteError as NonFiniteError
    from levada.rl import SpaceError as SpaceError
    from levada.rl.acting.network import WeightsError as WeightsError
    from levada.rl.compute.device import DeviceError as DeviceError
    from levada.rl.compute.tracing import RecordError as RecordError
    from levada.rl.data.normalize import StatisticsError as StatisticsError
    from levada.rl.envs.registry import TaskError as TaskError
    from levada.rl.learning.batches import MinibatchError as MinibatchError
    from levada.rl.learning.optimizers import OptimizerError as OptimizerError
    from levada.rl.learning.starting import StartError as StartError
    from levada.rl.policies.size import SizeError as SizeError
    from levada.rl.policies.user_networks import ModelError as ModelError
    from levada.run.active import StopError as StopError
    from levada.run.loggers import LogError as LogError
    from levada.run.remote_loggers import LoggerWarning as LoggerWarning
    from levada.run.storage.checkpoint import CheckpointError as CheckpointError
    from levada.run.storage.checkpoint import CheckpointWarning as CheckpointWarning
    from levada.run.storage.checkpoint import UnreadableError as UnreadableError
    from levada.run.storage.directory import RunDirectoryError as RunDirectoryError
    from levada.run.storage.remote import UploadError as UploadError
    from levada.run.storage.trust import UntrustedError as UntrustedError
    from levada.run.until import UntilError as UntilError
    from levada.run.user_exit import ExitError as ExitError
    from levada.runners import ClosedError as ClosedError
    from levada.runners import IteratorEndedError as IteratorEndedError
    from levada.runners import StuckError as StuckError
    from levada.runners import WorkerError as WorkerError
    from levada.runners import WorkError as WorkError
    from levada.runners.losses import ItemLostError as ItemLostError
    from levada.runners.processes.ipc.weights_ring import WeightsGrownError as WeightsGrownError
    from levada.runners.remote_errors import RemoteError as RemoteError
    from levada.runners.replicas.group import ReplicasDifferError as ReplicasDifferError
    from levada.runners.tables import TableLostError as TableLostError
    from levada.sweeps.errors import SweepError as SweepError

_HOME = {
    "AlgorithmError": "levada.algorithms.user_classes",
    "ChannelError": "levada.flow",
    "CheckpointError": "levada.run.storage.checkpoint",
    "CheckpointWarning": "levada.run.storage.checkpoint",
    "ClosedError": "levada.runners",
    "ConfigError": "levada.algorithms.checks",
    "DeploymentError": "levada.flow",
    "DeviceError": "levada.rl.compute.device",
    "DtypeError": "levada.math",
    "EnvError": "levada.rl",
    "ExitError": "levada.run.user_exit",
    "FlowError": "levada.flow",
    "FlowWarning": "levada.flow",
    "ItemLostError": "levada.runners.losses",
    "IteratorEndedError": "levada.runners",
    "LevadaError": "levada.flow",
    "LevadaInternalError": "levada.flow",
    "ComparisonError": "levada.comparison.records",
    "ExportError": "levada.onnx.write",
    "HubError": "levada.hub.repository",
    "LoadError": "levada.api.load",
    "LogError": "levada.run.loggers",
    "LoggerWarning": "levada.run.remote_loggers",
    "MinibatchError": "levada.rl.learning.batches",
    "ModelError": "levada.rl.policies.user_networks",
    "NameInUseError": "levada.flow",
    "NonFiniteError": "levada.rl",
    "NotSavedError": "levada.flow",
    "OptimizerError": "levada.rl.learning.optimizers",
    "OptionError": "levada.api.options",
    "RangeError": "levada.math",
    "RecordError": "levada.rl.compute.tracing",
    "RemoteError": "levada.runners.remote_errors",
    "ReplicaLostError": "levada.flow",
    "ReplicasDifferError": "levada.runners.replicas.group",
    "RunDirectoryError": "levada.run.storage.directory",
    "ShapeError": "levada.math",
    "SizeError": "levada.rl.policies.size",
    "SpaceError": "levada.rl",
    "StartError": "levada.rl.learning.starting",
    "StatisticsError": "levada.rl.data.normalize",
    "StopError": "levada.run.active",
    "StrayError": "levada.flow.strays",
    "StreamError": "levada.flow",
    "StuckError": "levada.runners",
    "SweepError": "levada.sweeps.errors",
    "TableLostError": "levada.runners.tables",
    "TaskError": "levada.rl.envs.registry",
    "UnreadableError": "levada.run.storage.checkpoint",
    "UntilError": "levada.run.until",
    "UntrustedError": "levada.run.storage.trust",
    "UploadError": "levada.run.storage.remote",
    "WeightsError": "levada.rl.acting.network",
    "WeightsGrownError": "levada.runners.processes.ipc.weights_ring",
    "WorkError": "levada.runners",
    "WorkerError": "levada.runners",
}

__all__ = [*_HOME]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOME)
