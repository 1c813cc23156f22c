"""Bad input: exit code 2 where the user's turn is, 1 where a run failed; one message; nothing overwritten."""

import json
import shutil
import sys

import numpy as np
import pytest
from support.runs import cli as cli_harness

import levada
from levada.cli.errors import guarded
from levada.rl.envs.task import Task
from levada.run.storage import checkpoint

CARTPOLE = "train ppo --env CartPole-v1"
BROKEN = f"train ppo --until updates=3 --log none {cli_harness.TINY} --env support.envs.broken:Broken"
MISTAKEN, FAILED = 2, 1
NUM_LINES = 3
"""That a mistake may take."""

USER_FILE = """
from dataclasses import dataclass
from levada import PPO, Algorithm
from torch import nn

class Algoritm:
    pass

@dataclass(frozen=True, kw_only=True)
class Mine(PPO):
    pass

@dataclass(frozen=True, kw_only=True)
class WithoutFlow(Algorithm):
    pass

@dataclass(frozen=True, kw_only=True)
class ForgetsToReturn(Algorithm):
    def flow(self, task):
        pass

@dataclass(frozen=True, kw_only=True)
class TakesSeed(PPO):
    seed: int = 0

@dataclass(frozen=True, kw_only=True)
class WithoutDefault(PPO):
    width: int

@dataclass(frozen=True, kw_only=True)
class Picky(PPO):
    width: int = 3

    def __post_init__(self):
        super().__post_init__()
        if self.width > 5:
            raise ValueError("width is above 5")

class Narrow(nn.Module):
    def __init__(self, space, num_params):
        super().__init__()
        self.body = nn.Linear(99, 64)

    def forward(self, obs):
        h = self.body(obs).tanh()
        return h, h[:, 0]

class Broken(nn.Module):
    def __init__(self, space, num_params):
        self.w = 1 / 0
"""

DICT_ENV = """
import gymnasium
from support.envs import small as small_envs
class DictAndBox(small_envs.DictObs):
    action_space = small_envs.BoxAction.action_space
gymnasium.register(id="DictAndBox-v0", entry_point=DictAndBox)
"""

NO_PYTHON = """
from levada import PPO
class Mine(PPO)
    pass
"""

FAILING = """
import sys

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class DiesLate(CartPoleEnv):
    num = 0

    def step(self, action):
        self.num += 1
        if self.num == 100:
            raise RuntimeError("the simulator died")
        return super().step(action)

class Exits(CartPoleEnv):
    where = "step"

    def __init__(self, where="step"):
        super().__init__()
        if where == "init":
            sys.exit(0)
        self.where = where

    def reset(self, **how):
        if self.where == "reset":
            sys.exit()
        return super().reset(**how)

    def step(self, action):
        sys.exit("no licence")

class PaysTooMuch(CartPoleEnv):
    num = 0

    def step(self, action):
        self.num += 1
        obs, reward, *rest = super().step(action)
        return obs, 3e38 if self.num == 100 else reward, *rest

gymnasium.register(id="DiesLate-v0", entry_point=DiesLate)
for where in ("init", "reset", "step"):
    gymnasium.register(id=f"Exits-{where}-v0", entry_point=Exits, kwargs={"where": where})
gymnasium.register(id="PaysTooMuch-v0", entry_point=PaysTooMuch)
"""

# id, command, exit code, what the message contains
COMMANDS = [
    # which command
    ("unknown verb", "trian ppo --env CartPole-v1", MISTAKEN, ["no command 'trian'", "levada train"]),
    ("strange verb", "frobnicate", MISTAKEN, ["no command 'frobnicate'", "train, resume, sweep, eval, watch, report, runs"]),
    ("unknown flag", "--verbose", MISTAKEN, ["no command '--verbose'"]),
    ("algorithms takes nothing", "algorithms ppo", MISTAKEN, ["takes nothing", "'ppo'"]),
    # which algorithm
    ("no algorithm", "train", MISTAKEN, ["which algorithm?", "algorithms: a2c, a3c, alphazero, apex_ddpg"]),
    ("algorithm not first", "train --env CartPole-v1 ppo", MISTAKEN, ["the algorithm comes first"]),
    ("unknown algorithm", "train pop --env CartPole-v1", MISTAKEN, ["no algorithm 'pop'", "did you mean 'ppo'?"]),
    ("strange algorithm", "train dreamer --env CartPole-v1", MISTAKEN, ["no algorithm 'dreamer'", "There are: a2c"]),
    ("no file", "train none.py:Mine --env CartPole-v1", MISTAKEN, ["no file 'none.py'"]),
    ("no module", "train nowhere:Mine --env CartPole-v1", MISTAKEN, ["no module 'nowhere'"]),
    ("empty module", "train :Mine --env CartPole-v1", MISTAKEN, ["'' is no module"]),
    ("no class", "train mine.py:Mien --env CartPole-v1", MISTAKEN, ["no algorithm 'Mien'", "did you mean 'Mine'?"]),
    ("no algorithm class", "train mine.py:Algoritm --env CartPole-v1", MISTAKEN, ["derive it from levada.Algorithm"]),
    ("abstract", "train mine.py:WithoutFlow --env CartPole-v1", MISTAKEN, ["WithoutFlow lacks flow"]),
    ("no return", "train mine.py:ForgetsToReturn --env CartPole-v1", MISTAKEN, ["did you forget `return flow`?"]),
    ("field taken", "train mine.py:TakesSeed --env CartPole-v1", MISTAKEN, ["field 'seed'", "call it something else"]),
    ("no default", "train mine.py:WithoutDefault --env CartPole-v1", MISTAKEN, ["no default for width"]),
    # which environment
    ("no env", "train ppo", MISTAKEN, ["--env is missing", "levada train ppo --env CartPole-v1"]),
    ("env without value", "train ppo --env", MISTAKEN, ["--env"]),
    ("env twice", "train ppo --env CartPole-v1 --env Acrobot-v1", MISTAKEN, ["--env is given 2 times"]),
    ("near env", "train ppo --env CartPol-v1", MISTAKEN, ["'CartPol-v1'", "did you mean 'CartPole-v1'?"]),
    ("env version", "train ppo --env CartPole-v7", MISTAKEN, ["did you mean 'CartPole-v1'?"]),
    ("moved env", "train ppo --env HalfCheetah-v2", MISTAKEN, ["gymnasium-robotics", "Did you mean 'HalfCheetah-v5'?"]),
    ("env case", "train ppo --env cartpole", MISTAKEN, ["did you mean 'CartPole-v1'?"]),
    ("env module", "train ppo --env nowhere:Cart-v0", MISTAKEN, ["there is no module 'nowhere'"]),
    ("env of module", "train ppo --env support.envs.broken:BrokenNanObz-v0", MISTAKEN, ["did you mean 'BrokenNanObs-v0'?"]),
    ("td3 choices", "train td3 --env CartPole-v1", MISTAKEN, ["TD3 needs Box actions", "Discrete(2); for these there are ppo"]),
    ("dqn numbers", "train dqn --env Pendulum-v1", MISTAKEN, ["DQN needs Discrete actions", "for these there are ppo, sac, td3"]),
    ("r2d2 numbers", "train r2d2 --env Pendulum-v1", MISTAKEN, ["R2D2 needs Discrete actions", "ppo, sac, td3"]),
    ("env as a word", "train ppo Acrobot-v1", MISTAKEN, ["--env is missing: `levada train ppo --env Acrobot-v1`"]),
    ("env file", "train ppo --env mine.py", MISTAKEN, ["task 'mine.py': expected a class", "'mine.py:MyEnv'"]),
    ("env class", "train ppo --env dict_envs:DictAndBox", MISTAKEN, ["has a DictAndBox", "dict_envs.py:DictAndBox'"]),
    ("env no Python", "train ppo --env nopython.py:Mine", MISTAKEN, ["line 3: SyntaxError: expected ':'", " ^"]),
    ("env imports", "train ppo --env lacking.py:Mine", MISTAKEN, ["lacking.py, line 1: ModuleNotFoundError", "import no"]),
    ("imports", "train lacking.py:Mine --env CartPole-v1", MISTAKEN, ["lacking.py, line 1: ModuleNotFoundError"]),
    ("algorithm file", "train mine.py --env CartPole-v1", MISTAKEN, ["expected a class of the file", "mine.py:Mine"]),
    # fields of the algorithm
    ("unknown field", f"{CARTPOLE} --learning-rat 1", MISTAKEN, ["no option --learning-rat; did you mean --learning-rate?"]),
    ("initials", f"{CARTPOLE} --ns 1", MISTAKEN, ["no option --ns", "--num-steps", "ppo --help"]),
    ("beginning", f"{CARTPOLE} --ent 4", MISTAKEN, ["no option --ent; did you mean --entropy-coef?"]),
    ("a word of it", f"{CARTPOLE} --epochs=4", MISTAKEN, ["no option --epochs: here it is --num-epochs"]),
    ("stray word", f"{CARTPOLE} --seed 1 fast", MISTAKEN, ["levada: fast: neither an option nor the value of one"]),
    ("unlike any", f"{CARTPOLE} --zzz 1", MISTAKEN, ["no option --zzz; `levada train ppo --help` lists all"]),
    ("gamma", f"{CARTPOLE} --gamma 9", MISTAKEN, ["PPO(discount=9.0): expected"]),
    ("steps of SB3", f"{CARTPOLE} --total-timesteps=100", MISTAKEN, ["here it is --until steps=100_000"]),
    ("buffer of SB3", "train dqn --env CartPole-v1 --replay-size 9", MISTAKEN, ["--replay-size: here it is --buffer-size"]),
    ("network of SB3", f"{CARTPOLE} --policy-kwargs 1", MISTAKEN, ["here it is --network or --hidden-sizes or --activation"]),
    ("workers of RLlib", f"{CARTPOLE} --num-workers 4", MISTAKEN, ["here it is --on processes:4 or --shards"]),
    ("own check", "train mine.py:Picky --env CartPole-v1 --width 6", MISTAKEN, ["levada: Picky: width is above 5"]),
    ("size and count", f"{CARTPOLE} --minibatch-size 64 --num-minibatches 4", MISTAKEN, ["expected at most one of them"]),
    ("count", f"{CARTPOLE} --num-minibatches 3", MISTAKEN, ["PPO(num_minibatches=3) does not divide", "try 2 or 4"]),
    ("layers", f"{CARTPOLE} --hidden-sizes 1000000 1000000", MISTAKEN, ["1,000,000 x 1,000,000 weights", "GiB"]),
    ("narrow network", f"{CARTPOLE} --network mine.py:Narrow", MISTAKEN, ["Narrow", "(2x4 and 99x64)", "in forward: h = "]),
    ("broken network", f"{CARTPOLE} --network mine.py:Broken", MISTAKEN, ["network=Broken", "in __init__: self.w = 1 / 0"]),
    ("no Python", "train nopython.py:Mine --env CartPole-v1", MISTAKEN, ["line 3: SyntaxError: expected ':'", " ^"]),
    ("no Python module", "train nopython:Mine --env CartPole-v1", MISTAKEN, ["line 3: SyntaxError: expected ':'", " ^"]),
    ("no Python env", "train ppo --env nopython:Mine-v0", MISTAKEN, ["line 3: SyntaxError: expected ':'", " ^"]),
    ("no Python network", f"{CARTPOLE} --network nopython.py:Net", MISTAKEN, ["line 3: SyntaxError: expected ':'", " ^"]),
    ("no number", f"{CARTPOLE} --learning-rate fast", MISTAKEN, ["--learning-rate fast: expected a number"]),
    ("no integer", f"{CARTPOLE} --num-envs 2.5", MISTAKEN, ["--num-envs 2.5: expected an integer"]),
    ("no choice", f"{CARTPOLE} --activation swish", MISTAKEN, ["--activation swish: expected elu, gelu, relu, silu or tanh"]),
    ("no bool", f"{CARTPOLE} --compile maybe", MISTAKEN, ["--compile maybe: expected auto, False, True or xla"]),
    ("layers in commas", f"{CARTPOLE} --hidden-sizes 64,64", MISTAKEN,
    ["--hidden-sizes 64,64: expected integers with spaces", "64 64"]),
    ("switch", f"{CARTPOLE} --normalize-obs True", MISTAKEN, ["True: a switch takes no value; it is `--name` or `--no-name`"]),
    ("option of others", f"{CARTPOLE} --buffer-size 9", MISTAKEN, ["no option --buffer-size: dqn, sac, td3 and others have it;"]),
    ("buffer of others", f"{CARTPOLE} --replay-size 9", MISTAKEN,
    ["here it is --buffer-size, which dqn, sac, td3 and others have"]),
    ("verbose", f"{CARTPOLE} --verbose 1", MISTAKEN, ["no option --verbose: here it is --quiet"]),
    ("network name", f"{CARTPOLE} --network resnet", MISTAKEN, ["network='resnet': expected my_module:Class"]),
    ("no mask", f"{CARTPOLE} --action-mask method", MISTAKEN, ["action_mask='method' needs a method action_masks()"]),
    ("lr 0", f"{CARTPOLE} --learning-rate 0", MISTAKEN, ["PPO(learning_rate=0.0): expected a finite number > 0"]),
    ("lr negative", f"{CARTPOLE} --learning-rate -1", MISTAKEN, ["PPO(learning_rate=-1.0)"]),
    ("lr nan", f"{CARTPOLE} --learning-rate nan", MISTAKEN, ["PPO(learning_rate=nan)"]),
    ("lr inf", f"{CARTPOLE} --learning-rate inf", MISTAKEN, ["PPO(learning_rate=inf)"]),
    ("discount 2", f"{CARTPOLE} --discount 2", MISTAKEN, ["PPO(discount=2.0): expected a number from 0 to 1"]),
    ("lambda", f"{CARTPOLE} --gae-lambda -0.1", MISTAKEN, ["PPO(gae_lambda=-0.1)"]),
    ("clip 0", f"{CARTPOLE} --clip-range 0", MISTAKEN, ["PPO(clip_range=0.0)"]),
    ("no envs", f"{CARTPOLE} --num-envs 0", MISTAKEN, ["PPO(num_envs=0): expected an integer >= 1"]),
    ("no epochs", f"{CARTPOLE} --num-epochs 0", MISTAKEN, ["PPO(num_epochs=0)"]),
    ("lag", f"{CARTPOLE} --max-lag -1", MISTAKEN, ["PPO(max_lag=-1): expected"]),
    ("entropy", f"{CARTPOLE} --entropy-coef -1", MISTAKEN, ["PPO(entropy_coef=-1.0)"]),
    ("hidden 0", f"{CARTPOLE} --hidden-sizes 64 0", MISTAKEN, ["hidden_sizes", "(64, 0)"]),
    ("std nan", f"{CARTPOLE} --log-std-init nan", MISTAKEN, ["log_std_init", "nan"]),
    ("minibatch", f"{CARTPOLE} --minibatch-size 100", MISTAKEN, ["1 * 8 * 32 = 256", "try 64 or 128"]),
    ("minibatch too large", f"{CARTPOLE} --minibatch-size 257", MISTAKEN, ["= 256; try 256, or num_minibatches in its place"]),
    # options of the run
    ("until name", f"{CARTPOLE} --until retrun=475", MISTAKEN, ["'retrun'", "did you mean 'return'?"]),
    ("until no number", f"{CARTPOLE} --until return=high", MISTAKEN, ["return=high is not a number"]),
    ("until without value", f"{CARTPOLE} --until 475", MISTAKEN, ["'475' is not name=value"]),
    ("until twice", f"{CARTPOLE} --until return=1 return=2", MISTAKEN, ["return is given twice, as 1 and 2"]),
    ("until in two options", f"{CARTPOLE} --until steps=1 --until steps=2", MISTAKEN, ["steps is given twice"]),
    ("until empty", f"{CARTPOLE} --until=", MISTAKEN, ["until is empty", "return, eval_return, plateau, steps, updates"]),
    ("until missing", f"{CARTPOLE} --until", MISTAKEN, ["--until is given without a value"]),
    ("until 0", f"{CARTPOLE} --until steps=0", MISTAKEN, ["steps=0 must be positive"]),
    ("unknown deployment", f"{CARTPOLE} --on mars", MISTAKEN, ["on='mars'", "'inline'"]),
    ("number of workers", f"{CARTPOLE} --on 2", MISTAKEN, ["on='2'", "'threads:2'", "did you mean 'processes:2'?"]),
    ("quiet json", f"{CARTPOLE} --quiet --json", MISTAKEN, ["--quiet and --json"]),
    ("seed negative", f"{CARTPOLE} --seed -1", MISTAKEN, ["seed=-1: expected an integer >= 0"]),
    ("seed word", f"{CARTPOLE} --seed one", MISTAKEN, ["--seed one: expected an integer"]),
    ("kwargs of make", f"{CARTPOLE} --env-kwargs disable_env_checker=1", MISTAKEN, ["'disable_env_checker'", "leave it out"]),
    ("out bytes", f"{CARTPOLE} --out run\udcff", MISTAKEN, ["config.json is written in UTF-8, and cannot hold 'run\\udcff'"]),
    ("kwargs bare", f"{CARTPOLE} --env-kwargs speed", MISTAKEN, ["--env-kwargs speed: expected name=value"]),
    ("kwargs twice", f"{CARTPOLE} --env-kwargs a=1 a=2", MISTAKEN, ["--env-kwargs has a twice"]),
    ("kwargs value", "train ppo --env FrozenLake-v1 --env-kwargs map_name=9x9", MISTAKEN, ["KeyError: '9x9' (frozen_lake.py"]),
    ("kwargs unknown", f"{CARTPOLE} --env-kwargs gravitee=1", MISTAKEN, ["'CartPole-v1': env_kwargs has 'gravitee'"]),
    ("seed twice", f"{CARTPOLE} --seed 1 --seed 2", MISTAKEN, ["--seed is given 2 times"]),
    ("threads 0", f"{CARTPOLE} --threads 0", MISTAKEN, ["threads=0: expected an integer >= 1"]),
    ("many threads", f"{CARTPOLE} --threads 99999", MISTAKEN, ["threads=99999: expected at most", "cores of this machine"]),
    ("checkpoints", f"{CARTPOLE} --checkpoint-every-updates 0", MISTAKEN, ["checkpoint_every_updates=0"]),
    # where to write
    ("holds a run", f"{CARTPOLE} --out run", MISTAKEN, ["run already holds a run", "nothing is overwritten"]),
    ("holds files", f"{CARTPOLE} --out files", MISTAKEN, ["files holds other files (notes.txt)"]),
    ("is a file", f"{CARTPOLE} --out files/notes.txt", MISTAKEN, ["files/notes.txt is a file"]),
    ("below a file", f"{CARTPOLE} --out files/notes.txt/run", MISTAKEN, ["files/notes.txt is a file, not a directory"]),
    ("not writable", f"{CARTPOLE} --out /proc/levada/run", MISTAKEN, ["cannot write the run directory /proc/levada"]),
    ("name too long", f"{CARTPOLE} --out {'x' * 300}", MISTAKEN, ["File name too long"]),
    ("no such user", f"{CARTPOLE} --out ~nobody-here/run", MISTAKEN, ["there is no such user"]),
    ("svg below nothing", "show ppo --env CartPole-v1 --svg no/flow.svg", MISTAKEN, ["--svg no/flow.svg", "No such"]),
    ("svg directory", "show ppo --env CartPole-v1 --svg files", MISTAKEN, ["--svg files", "Is a directory"]),
    ("svg and mermaid", "show ppo --env CartPole-v1 --svg a.svg --mermaid", MISTAKEN, ["--svg and --mermaid"]),
    ("show until", "show ppo --env CartPole-v1 --until steps=1", MISTAKEN, ["--until"]),
    ("init number", "train --config initnumber/config.json", MISTAKEN, ["initnumber cannot be used", "init_from=1000000000"]),
    ("on number", "train --config onnumber/config.json", MISTAKEN, ["onnumber cannot be used again", "on=2: expected the name"]),
    # what cannot be learned from
    ("Text", f"{BROKEN}TextObs-v0", MISTAKEN, ["observation space is Text", "encode the text as a Box"]),
    ("Graph", f"{BROKEN}GraphObs-v0", MISTAKEN, ["observation space is Graph", "padded"]),
    ("Tuple action", f"{BROKEN}TupleAction-v0", MISTAKEN, ["action space is Tuple", "ActionWrapper"]),
    ("integer Box", f"{BROKEN}IntegerBoxAction-v0", MISTAKEN, ["dtype int64", "did you mean MultiDiscrete"]),
    ("mask of wrong size", f"{BROKEN}MissizedMask-v0", MISTAKEN, ["'action_mask'", "MultiBinary(2)"]),
    ("check Text", "check ppo --env support.envs.broken:BrokenTextObs-v0", MISTAKEN, ["observation space is Text"]),
    (
        "check reset", "check ppo --env support.envs.broken:BrokenOldReset-v0", MISTAKEN,
        ["breaks Gymnasium's contract", "reset()"],
    ),
    # environments that break in the run
    ("raises in reset", f"{BROKEN}RaisesInReset-v0", FAILED, ["KeyError: 'reset failed'", "env 0 of 2, reset"]),
    (
        "raises in step", f"{BROKEN}RaisesInStep-v0", FAILED,
        ["ZeroDivisionError: division by zero", "in broken: return 1 / 0", "env 0 of 2, step 5", "node 'rollout'", "shard 0"],
    ),
    ("raises ValueError", f"{BROKEN}RaisesValueError-v0", FAILED, ["ValueError: math domain error", "shard 0"]),
    ("NaN obs", f"{BROKEN}NanObs-v0", FAILED, ["EnvError", "env 0 of 2, step 5", "observation has NaN", "shard 0"]),
    ("NaN reward", f"{BROKEN}NanReward-v0", FAILED, ["EnvError", "reward is nan", "node 'rollout'"]),
    ("text reward", f"{BROKEN}TextReward-v0", FAILED, ["reward is 'much' (str), expected a number"]),
    ("wrong shape", f"{BROKEN}WrongShape-v0", FAILED, ["shape (4,), expected (3,)"]),
    ("wrong shape in reset", f"{BROKEN}WrongShapeInReset-v0", FAILED, ["shape (3, 1), expected (3,)", ".reshape(3,)"]),
    ("wrong dtype", f"{BROKEN}WrongDtype-v0", FAILED, ["dtype float64, expected uint8"]),
    ("no tuple", f"{BROKEN}NoTuple-v0", FAILED, ["step() returned a ndarray", "terminated, truncated"]),
    ("four values", f"{BROKEN}FourValues-v0", FAILED, ["step() returned a tuple of 4", "old gym API"]),
    ("old reset", f"{BROKEN}OldReset-v0", FAILED, ["reset() returned a ndarray", "(obs, info)"]),
    ("nothing allowed", f"{BROKEN}NoActionAllowed-v0", FAILED, ["allows no action", "[0, 0]"]),
    # runs that cannot be evaluated
    ("eval nothing", "eval", MISTAKEN, ["which run? `levada eval RUN`"]),
    ("eval number", "eval run --checkpoint worst", MISTAKEN, ["--checkpoint worst: expected an integer, best or None"]),
    ("eval option", "eval run --episode 3", MISTAKEN, ["no option --episode; did you mean --episodes? `levada eval --help`"]),
    ("eval two", "eval run run", MISTAKEN, ["cross_play:", "has a single agent; use levada.evaluate"]),
    ("resume option", "resume run --learning-rate 1", MISTAKEN, ["no option --learning-rate; `levada resume --help` lists all"]),
    ("eval nowhere", "eval nowhere", MISTAKEN, ["no run at 'nowhere'"]),
    ("eval no run", "eval files", MISTAKEN, ["files is not a run", "config.json"]),
    ("eval above", "eval .", MISTAKEN, [". is not a run", "did you mean unsaved?"]),
    ("eval file", "eval files/notes.txt", MISTAKEN, ["is a file"]),
    ("eval torn", "eval torn", MISTAKEN, ["config.json", "torn"]),
    ("eval unsaved", "eval unsaved", MISTAKEN, ["no valid checkpoint"]),
    ("eval edited", "eval edited", MISTAKEN, ["lacks 'learning_rate'"]),
    ("eval without monitor", "eval unknown", MISTAKEN, ["unknown/checkpoints/000000001 lacks 'monitor'", "no valid checkpoint"]),
    ("eval other network", "eval resized", MISTAKEN, ["expected shape (9, 4)"]),
    ("eval 0 episodes", "eval run --episodes 0", MISTAKEN, ["--episodes 0: expected an integer >= 1"]),
    ("eval seed", "eval run --seed -1", MISTAKEN, ["--seed -1: expected an integer >= 0"]),
]  # fmt: skip

# id, call, what the message contains
CALLS = [
    ("unknown field", lambda: levada.train("ppo", "CartPole-v1", learning_rat=1), ["did you mean 'learning_rate'?"]),
    ("strange field", lambda: levada.train("ppo", "CartPole-v1", zzz=1), ["no field 'zzz'; its fields: shards"]),
    ("no number", lambda: levada.train("ppo", "CartPole-v1", learning_rate="fast"), ["PPO(learning_rate='fast')"]),
    ("lr nan", lambda: levada.train("ppo", "CartPole-v1", learning_rate=float("nan")), ["PPO(learning_rate=nan)"]),
    ("True envs", lambda: levada.train("ppo", "CartPole-v1", num_envs=True), ["PPO(num_envs=True)"]),
    ("seed", lambda: levada.train("ppo", "CartPole-v1", seed=1.5), ["seed=1.5: expected an integer >= 0"]),
    ("until", lambda: levada.train("ppo", "CartPole-v1", until="return"), ["'return' is not name=value"]),
    ("deployment", lambda: levada.train("ppo", "CartPole-v1", on="mars"), ["on='mars'"]),
    ("env number", lambda: levada.train("ppo", 7), ["env is 7 (int)"]),
    ("env nothing", lambda: levada.train("ppo", lambda: None), ["returned None", "did you forget `return`?"]),
    ("env kwargs", lambda: levada.train("ppo", Task("CartPole-v1", env_kwargs={"num_envs": 2})), ["'num_envs'"]),
    ("holds a run", lambda: levada.train("ppo", "CartPole-v1", out="run"), ["run already holds a run"]),
    ("episodes", lambda: levada.evaluate("run", num_episodes=0), ["num_episodes=0"]),
    ("load", lambda: levada.load("nowhere"), ["no run at 'nowhere'"]),
    ("load None", lambda: levada.load(None), ["levada.load: path is a NoneType, expected the directory of a run"]),
    ("evaluate None", lambda: levada.evaluate(None), ["path is a NoneType"]),
    ("on number", lambda: levada.train("ppo", "CartPole-v1", on=2), ["on=2 (int)", "did you mean on='processes:2'?"]),
    ("on class", lambda: levada.train("ppo", "CartPole-v1", on=print), ["expected 'inline', 'processes:2'"]),
    (
        "instrument",
        lambda: levada.train("ppo", "CartPole-v1", instruments=[len]),
        ["instruments[0] is len", "on_event"],
    ),
    ("no list", lambda: levada.train("ppo", "CartPole-v1", instruments=print), ["expected a sequence of objects"]),
    (
        "no bool",
        lambda: levada.train("ppo", "CartPole-v1", log="no"),
        ["log='no': no logger 'no', expected 'none', or some of tensorboard, csv, wandb, mlflow, trackio"],
    ),
    ("out number", lambda: levada.train("ppo", "CartPole-v1", out=3), ["out=3 (int): expected a directory"]),
    (
        "init number",
        lambda: levada.train("ppo", "CartPole-v1", init_from=3),
        ["init_from=3 (int): expected a directory"],
    ),
    ("out bytes", lambda: levada.train("ppo", "CartPole-v1", out="a\udcff"), ["in UTF-8", r"cannot hold 'a\udcff'"]),
    ("eval kwargs", lambda: levada.evaluate("run", env_kwargs=5), ["evaluate: env_kwargs=5, expected a mapping"]),
    ("task kwargs", lambda: Task("CartPole-v1", env_kwargs=5), ["env_kwargs is 5, expected a mapping"]),
    ("names of kwargs", lambda: Task("CartPole-v1", env_kwargs={1: 2}), ["env_kwargs is {1: 2}, expected a mapping"]),
    ("seed None", lambda: levada.train("ppo", "CartPole-v1", seed=None), ["seed=None: expected an integer >= 0"]),
    (
        "foreign field",
        lambda: levada.train("ppo", "CartPole-v1", gamma=0.9),
        ["no field 'gamma': here it is 'discount'"],
    ),
    ("no algorithm", lambda: levada.train(3, "CartPole-v1"), ["algorithm is 3, expected a name such as 'ppo'"]),
    ("other class", lambda: levada.train(Task, "CartPole-v1"), ["expected a name such as 'ppo'"]),
    ("field of Task", lambda: Task("CartPole-v1", max_episode_steps=5), ["env_kwargs={'max_episode_steps': 5}"]),
    ("near field of Task", lambda: Task("CartPole-v1", frame_stak=5), ["did you mean 'frame_stack'?"]),
    ("threads", lambda: levada.train("ppo", "CartPole-v1", threads=99999), ["threads=99999: expected at most"]),
]


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A directory with a run, and with all that looks like one."""
    root = tmp_path_factory.mktemp("bad-input")
    fields = {"display": "quiet", "log": "none", **cli_harness.TINY_FIELDS}
    levada.train("ppo", "CartPole-v1", until="updates=1", out=root / "run", **fields)
    for copy in ("torn", "unsaved", "edited", "resized", "unknown"):
        shutil.copytree(root / "run", root / copy)
    (root / "torn" / "config.json").write_bytes((root / "run" / "config.json").read_bytes()[:100])
    shutil.rmtree(root / "unsaved" / "checkpoints")
    (root / "unknown" / "summary.json").unlink()
    meta = root / "unknown" / "checkpoints" / "000000001" / "meta.json"
    record = json.loads(meta.read_bytes())
    del record["meta"]["monitor"]
    meta.write_text(json.dumps(checkpoint.sealed(record)))
    for name, change in (
        ("edited", {"learning_rate": None}),
        ("resized", {"hidden_sizes": {"value": [9], "from": "default"}}),
    ):
        config = json.loads((root / name / "config.json").read_bytes())
        settings = config["settings"] | change
        config["settings"] = {key: value for key, value in settings.items() if value is not None}
        (root / name / "config.json").write_text(json.dumps(config))
    for name, change in (("initnumber", {"init_from": 1_000_000_000}), ("onnumber", {"on": 2})):
        shutil.copytree(root / "run", root / name)
        config = json.loads((root / name / "config.json").read_bytes())
        config["settings"] |= {key: {"value": value, "from": "argument"} for key, value in change.items()}
        (root / name / "config.json").write_text(json.dumps(config))
    (root / "files").mkdir()
    (root / "files" / "notes.txt").write_text("mine")
    (root / "mine.py").write_text(USER_FILE)
    (root / "nopython.py").write_text(NO_PYTHON)
    (root / "dict_envs.py").write_text(DICT_ENV)
    (root / "lacking.py").write_text("import nobody_has_this\n")
    return root


@pytest.fixture
def here(template, tmp_path, monkeypatch):
    """A copy of it, in which the command is called."""
    directory = tmp_path / "here"
    shutil.copytree(template, directory)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("COLUMNS", "400")
    return directory


@pytest.mark.parametrize(("command", "code", "pieces"), [row[1:] for row in COMMANDS], ids=[row[0] for row in COMMANDS])
@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_bad_input_gives_one_clear_message(here, capsys, command, code, pieces):
    before = cli_harness.tree(here)
    done = cli_harness.Shell(capsys)(command)
    assert done.code == code
    assert done.out == ""
    assert "Traceback" not in done.err
    for piece in pieces:
        assert piece in done.message
    after = cli_harness.tree(here)
    assert {path: after.get(path) for path in before} == before, "something was overwritten"
    if code == MISTAKEN:
        assert after.keys() == before.keys(), "something was written"
        lines = done.err.splitlines()
        said = [line for line in lines if not line.startswith("levada: warning: ")]
        assert said[0].startswith("levada: ")
        assert done.err.count("levada: ") == 1 + len(lines) - len(said)
        assert len(lines) <= NUM_LINES
        return
    report = done.err[done.err.index("levada: ") :]
    assert report.count("levada: ") == 1
    written = {path: data for path, data in after.items() if path not in before}
    (trace,) = [data for path, data in written.items() if path.endswith("error.txt")]
    assert trace.startswith(b"Traceback (most recent call last)")
    assert str(next(path for path in written if path.endswith("error.txt"))) in report
    assert not any(path.endswith("summary.json") for path in written)


@pytest.mark.parametrize(("call", "pieces"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_bad_arguments_raise_before_anything_starts(here, call, pieces):
    before = cli_harness.tree(here)
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert isinstance(caught.value, levada.LevadaError)
    for piece in pieces:
        assert piece in str(caught.value)
    assert cli_harness.tree(here) == before


def test_what_an_environment_raises_while_it_is_made_is_shown_with_its_traceback(here, capsys):
    """There is no run yet that could hold error.txt."""
    done = cli_harness.Shell(capsys)(f"{BROKEN}RaisesInInit-v0")
    assert (done.code, done.out) == (FAILED, "")
    trace, message = done.err.split("levada: RuntimeError: no such level\n")
    assert trace.startswith("Traceback (most recent call last)")
    assert "no such level" not in trace.splitlines()[-1]
    assert "in __init__: raise RuntimeError(msg)" in message
    assert "while making 1 of task 'support.envs.broken:BrokenRaisesInInit-v0'" in message
    assert not (here / "runs").exists()


def test_an_unknown_display_is_refused_before_anything_is_written(here):
    with pytest.raises(ValueError, match="display 'loud': expected one of auto, live, plain, notebook, quiet, json"):
        levada.train("ppo", "CartPole-v1", display="loud")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("env", "package", "command"),
    [
        ("ALE/Pong-v5", "ale_py", "pip install 'levada[atari]'"),
        ("HalfCheetah-v5", "mujoco", "pip install 'levada[mujoco]'"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(here, capsys, monkeypatch, env, package, command):
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    done = cli_harness.Shell(capsys)(f"train ppo --env {env} --until updates=1")
    assert done.code == MISTAKEN
    assert done.err.startswith(f"levada: task {env!r} needs")
    assert command in done.err
    assert done.err.count("\n") == 1


def test_a_full_disk_does_not_hide_what_failed(here, capsys, monkeypatch):
    """The traceback is printed if it cannot be written."""
    from levada.run.storage import directory

    write = directory.write_atomic

    def full(path, data):
        if path.name == directory.ERROR:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(directory, "write_atomic", full)
    done = cli_harness.Shell(capsys)(f"{BROKEN}RaisesInStep-v0")
    assert done.code == FAILED
    assert "Traceback (most recent call last)" in done.err
    assert "levada: ZeroDivisionError: division by zero" in done.err


@pytest.mark.parametrize(("env", "said"), [("DiesLate-v0", "the simulator died"), ("PaysTooMuch-v0", "NonFiniteError")])
def test_a_run_that_fails_late_can_be_evaluated(here, capsys, env, said):
    """An environment that raises and a loss that gives NaN: what was learned until then is saved."""
    command = f"train ppo --until updates=50 --log none {cli_harness.TINY} --out late --env failing:{env}"
    command += " --on inline,max_restarts=0"
    (here / "failing.py").write_text(FAILING)
    done = cli_harness.Shell(capsys)(command)
    assert (done.code, said in done.err) == (FAILED, True)
    saved = checkpoint.newest(here / "late")
    assert f"what was learned in {saved.step} updates is saved in late" in done.err
    assert saved.step > 0
    assert saved.meta["stopped_by"] == "failed"
    assert all(np.isfinite(array).all() for array in saved.arrays.values())
    assert (levada.load("late").summary.stopped_by, levada.load("late").policy.version) == ("cut off", saved.step)


@pytest.mark.parametrize(
    ("where", "called", "line"),
    [("reset", "sys.exit()", "sys.exit()"), ("step", "sys.exit('no licence')", "sys.exit(")],
)
def test_an_environment_that_calls_exit_is_a_failed_run(here, capsys, where, called, line):
    (here / "failing.py").write_text(FAILING)
    command = f"train ppo --until updates=5 --log none {cli_harness.TINY} --env failing:Exits-{where}-v0 --out exits"
    done = cli_harness.Shell(capsys)(command)
    assert (done.code, done.out) == (FAILED, "")
    assert f"levada: ExitError: {called} was called by the environment, the loss or other code of the run" in done.err
    assert f"in {where}: {line}" in done.err
    assert "in node 'rollout' of flow 'ppo'" in done.err or where == "reset"
    assert done.err.endswith("The traceback is in exits/error.txt.\n")
    assert "SystemExit" in (here / "exits" / "error.txt").read_text()
    assert not (here / "exits" / "summary.json").exists()


def test_an_exit_before_there_is_a_run_is_an_error_too(here, capsys):
    (here / "failing.py").write_text(FAILING)
    done = cli_harness.Shell(capsys)(f"train ppo {cli_harness.TINY} --env failing:Exits-init-v0 --out exits")
    assert (done.code, done.out) == (FAILED, "")
    assert done.err.startswith("Traceback")
    assert "levada: ExitError: sys.exit(0) was called" in done.err
    assert not (here / "exits").exists()


@pytest.mark.parametrize("command", ["train ppo --help --env CartPole-v1", "train --help", "eval --help"])
def test_help_is_no_failure(here, capsys, command):
    done = cli_harness.Shell(capsys)(command)
    assert (done.code, done.err) == (0, "")


def test_codes_and_streams_of_a_whole_process(here):
    """As a shell sees them: the table above calls functions."""
    mistaken = cli_harness.in_process("train ppo --env CartPol-v1", cwd=here)
    assert (mistaken.code, mistaken.out) == (MISTAKEN, "")
    assert mistaken.err.startswith("levada: task 'CartPol-v1'")
    assert mistaken.err.count("\n") == 1
    failed = cli_harness.in_process(
        f"{BROKEN}RaisesInStep-v0 --quiet --out failed --on inline,max_restarts=0", cwd=here
    )
    assert (failed.code, failed.out) == (FAILED, "")
    assert failed.err.startswith("levada: ZeroDivisionError: division by zero\n  at ")
    assert failed.err.endswith("The traceback is in failed/error.txt.\n")
    assert "return 1 / 0" in (here / "failed" / "error.txt").read_text()
    again = cli_harness.in_process(f"{BROKEN}RaisesInStep-v0 --quiet --out again", cwd=here)
    *restarts, said = again.err.splitlines()[:4]
    assert [line.rpartition("(")[2] for line in restarts] == [f"failure {n} of 3 in a row)" for n in (1, 2, 3)]
    assert said == "levada: ZeroDivisionError: division by zero"


def test_other_errors_are_no_mistakes_of_the_user(capsys):
    """A ValueError of levada's own making would say so; any other is shown whole."""

    def fails():
        raise ValueError("oops")

    assert guarded(fails) == FAILED
    assert capsys.readouterr().err.startswith("Traceback")


def test_an_error_that_cannot_be_put_into_words_is_reported(capsys):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    def fails():
        raise Silent

    assert guarded(fails) == FAILED
    assert "levada: Silent: (str() of it raises RuntimeError)" in capsys.readouterr().err


def test_a_huge_message_of_an_error_is_cut(capsys):
    def fails():
        raise RuntimeError("x" * 1_000_000)

    assert guarded(fails) == FAILED
    said = capsys.readouterr().err
    assert len(said) < 5_000
    assert "(the first 2,000 of 1,000,000 characters)" in said
