"""Speed of levada and of other libraries on this machine.

    python benchmarks/compare.py ppo-cartpole --json ppo.json       # 12 minutes; needs levada[jax]
    python benchmarks/compare.py ppo-cartpole --quick               # does it work? 1 minute
    python benchmarks/compare.py ppo-cartpole --only-peers          # without levada
    python benchmarks/compare.py ppo-cartpole --compare-threads     # the figures in `compare/presets.py`
    python benchmarks/compare.py jax-cartpole                       # 10 minutes; needs levada[jax]
    python benchmarks/compare.py jax-ant                            # and jax-craftax: PPO in environments that cost more
    python benchmarks/compare.py async-cartpole --json async.json   # 6 minutes; takes the same options
    python benchmarks/compare.py dqn-cartpole --json dqn.json       # 6 minutes
    python benchmarks/compare.py sac-halfcheetah --json sac.json    # 7 minutes; the SBX environment takes another one, once
    python benchmarks/compare.py pong --json pong.json              # 40 minutes; needs levada[atari]
    python benchmarks/compare.py ray-impala-cartpole                # 12 minutes; needs levada[ray]
    python benchmarks/compare.py mappo-spread                       # 15 minutes; needs levada[multiagent]
    python benchmarks/compare.py two-policies                       # 10 minutes; the same

Every peer has its own virtual environment in `.bench/`, recreated when its pins in
`compare/libraries/requirements-<peer>.txt` change;
levada is the one installed for the interpreter that runs this file. Processes run one at a time, in turn (A B A B ...), with
a new seed in each turn, after a short uncounted run of each program. All use the CPU only. Levada writes all its files, as in
a user's run; the peers write none, or as few as they can.

A ratio is levada's median divided by the peer's; beside it are the smallest and the largest ratio of any run of levada to any
run of the peer. A run is disturbed if other processes kept more than 0.15 cores busy while it ran.

**steps/s** (`ppo-cartpole`, `async-cartpole`): equal hyper-parameters, those of the peer. In `ppo-cartpole`, levada runs with and
without updates compiled by XLA. In `async-cartpole`, equal are the network, the number of environments, the passes over the data
and the minibatch size; levada runs on processes, in several forms. `compare/async_presets.py` lists the differences.

- *training*: `(steps at the end - steps at A) / (seconds from A to the end)`, where A is the first line of progress after the
  first update has finished and another tenth of all steps have been taken. Imports and the recording of the update are
  excluded, and only whole iterations of rollout and update are included.
- *whole process*: all steps / seconds from the start of the process to its exit. What XLA compiles for levada is kept in
  `~/.cache/levada/xla`: only the first process with the same shapes compiles, so the median is one that does not.

Steps are those that were learned from; resets are not counted.

**gradient steps/s** (`dqn-cartpole`, `sac-halfcheetah`): the same for gradient steps, with the peer's network, batch size,
and ratio of gradient steps to env steps. A is after the filling of the replay. `compare/off_policy_presets.py` lists the forms
in which levada runs. TianJi cannot be installed beside the others: figures measured elsewhere, on a machine of the same kind,
are quoted, and levada's ratio is that to the largest figure.

**steps/s** (`pong`): Atari's Pong; a step is one action and four frames. Peers and levada may take a different number of
steps. `compare/atari_presets.py` lists what is equal and what is not. In addition, once per turn, levada's components are
measured alone, each with all cores: environment steps, and observations per second of inference and of training. The *serial
ceiling* is their throughput if each had all cores in turn and nothing else took any time: 1 / (1 / environment + 1 /
inference + passes / training). *Efficiency* is levada's rate of training divided by it. Memory is that of all processes of a
run together, with shared memory divided among the processes that share it, libraries included, at the maximum of about one
sample per second.

**steps/s** (`ray-impala-cartpole`): IMPALA on a Ray cluster that each run starts for itself on this machine, and levada on
processes in the same turns. `compare/ray_presets.py` lists what is equal and what is not. A second table has levada's rate on Ray
divided by that on processes.

**steps/s** (`jax-cartpole`, `jax-ant`, `jax-craftax`): PPO of rejax and of levada on gymnax's CartPole, Brax's ant and Craftax,
both compiled by XLA. `compare/jax_presets.py` lists what is equal and what is not.

**steps/s** (`mappo-spread`, `two-policies`): algorithms for several agents, MAPPO beside BenchMARL's and PPO for two policies
beside RLlib's. A step is one of the environment, in which all agents act. `compare/multi_agent_presets.py` lists what is equal
and what is not.

**seconds to a return of 475** (`ppo-cartpole`, `jax-cartpole`): SB3, CleanRL and rejax with the settings above, levada out of the
box. Measured from the start of the process to its exit, which follows as soon as the mean return of the last 100 episodes has
reached 475 (50 in --quick). `jax-cartpole` has levada a second time, with no code kept that an earlier process compiled.

The lines of progress, from which all this is computed, are kept in `.bench/runs/`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compare.run import main

if __name__ == "__main__":
    sys.exit(main())
