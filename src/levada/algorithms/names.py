"""Names of the algorithms, and a one-line summary of each, without importing them, so that `levada algorithms` is fast.

>>> summary("ppo").partition(" ")[0]
'PPO:'
"""

from __future__ import annotations

import ast
import inspect
from importlib.resources import files

ALGORITHMS = {
    "a2c": "levada.algorithms.a2c:A2C",
    "a3c": "levada.algorithms.a3c:A3C",
    "alphazero": "levada.algorithms.alphazero:AlphaZero",
    "apex_ddpg": "levada.algorithms.apex_ddpg:ApexDDPG",
    "apex_dqn": "levada.algorithms.apex_dqn:ApexDQN",
    "appo": "levada.algorithms.appo:APPO",
    "ddpg": "levada.algorithms.ddpg:DDPG",
    "diloco": "levada.algorithms.diloco:DiLoCo",
    "dqn": "levada.algorithms.dqn:DQN",
    "impala": "levada.algorithms.impala:IMPALA",
    "ippo": "levada.algorithms.ippo:IPPO",
    "maddpg": "levada.algorithms.maddpg:MADDPG",
    "mappo": "levada.algorithms.mappo:MAPPO",
    "multi": "levada.algorithms.multi_agent:MultiAgent",
    "nfsp": "levada.algorithms.nfsp:NFSP",
    "pg": "levada.algorithms.pg:PG",
    "ppo": "levada.algorithms.ppo:PPO",
    "qmix": "levada.algorithms.qmix:QMIX",
    "r2d2": "levada.algorithms.r2d2:R2D2",
    "rainbow": "levada.algorithms.rainbow:Rainbow",
    "recurrent_sac": "levada.algorithms.recurrent_sac:RecurrentSAC",
    "sac": "levada.algorithms.sac:SAC",
    "td3": "levada.algorithms.td3:TD3",
    "vdn": "levada.algorithms.vdn:VDN",
}
"""Name -> module:class, imported on use."""


def summary(name: str) -> str:
    """Read the first paragraph of an algorithm module's docstring without importing the module."""
    package, _, module = ALGORITHMS[name].partition(":")[0].rpartition(".")
    source = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    return first_paragraph(ast.get_docstring(ast.parse(source)) or name)


def first_paragraph(text: str) -> str:
    r"""The first paragraph of a docstring, on one line.

    >>> first_paragraph("PG: the policy\n    gradient.\n\nMore.")
    'PG: the policy gradient.'
    """
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
