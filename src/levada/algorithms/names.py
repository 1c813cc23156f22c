"""The algorithms by name, and what each is in one line. Looking loads none of them, so `levada algorithms` is quick.

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
    "apex_ddpg": "levada.algorithms.apex_ddpg:ApexDDPG",
    "apex_dqn": "levada.algorithms.apex_dqn:ApexDQN",
    "appo": "levada.algorithms.appo:APPO",
    "ddpg": "levada.algorithms.ddpg:DDPG",
    "dqn": "levada.algorithms.dqn:DQN",
    "impala": "levada.algorithms.impala:IMPALA",
    "pg": "levada.algorithms.pg:PG",
    "ppo": "levada.algorithms.ppo:PPO",
    "r2d2": "levada.algorithms.r2d2:R2D2",
    "rainbow": "levada.algorithms.rainbow:Rainbow",
    "recurrent_sac": "levada.algorithms.recurrent_sac:RecurrentSAC",
    "sac": "levada.algorithms.sac:SAC",
    "td3": "levada.algorithms.td3:TD3",
}
"""Name -> module:class. Imported when used."""


def summary(name: str) -> str:
    """The first paragraph of the docstring of an algorithm's module, read without importing it."""
    package, _, module = ALGORITHMS[name].partition(":")[0].rpartition(".")
    source = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    return first_paragraph(ast.get_docstring(ast.parse(source)) or name)


def first_paragraph(text: str) -> str:
    r"""The first paragraph of a docstring, in one line.

    >>> first_paragraph("PG: the policy\n    gradient.\n\nMore.")
    'PG: the policy gradient.'
    """
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
