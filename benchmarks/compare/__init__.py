"""What `benchmarks/compare.py` is made of.

run                 the command: its options, what it runs in turn, its tables
libraries/          the scripts and the pins of the libraries that levada is compared with; each runs in its own environment
levada/             networks like theirs, and what the parts of levada do alone
presets             what `ppo-cartpole` compares: the peers' settings, and the same as fields of levada's configurations
async_presets       the same for `async-cartpole`
off_policy_presets  the same for `dqn-cartpole` and `sac-halfcheetah`
atari_presets       the same for `pong`
ray_presets         the same for `ray-impala-cartpole`
jobs                which processes are run, and in which order
sides               the command lines and the files of levada and of the peers
environments        the peers' virtual environments
processes           start a process, see it end, and see what else the machine does
execute             time one process
screen              what is shown meanwhile
tables              what is shown in the end
report              the same as JSON
"""
