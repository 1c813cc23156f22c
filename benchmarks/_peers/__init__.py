"""What `benchmarks/peers.py` is made of.

presets             what `ppo-cartpole` compares: the peers' settings, and the same in levada's words
async_presets       the same for `async-cartpole`
off_policy_presets  the same for `dqn-cartpole` and `sac-halfcheetah`
atari_presets       the same for `pong`
atari_parts         what the parts of levada do alone there
networks            the peers' networks, for levada
jobs                which processes are run, and in which order
sides               the command lines and the files of levada and of the peers
environments        the peers' virtual environments
processes           start a process, see it end, and see what else the machine does
execute             time one process
screen              what is shown meanwhile
tables              what is shown in the end
report              the same as JSON
"""
