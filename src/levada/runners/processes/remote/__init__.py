"""A run in a process of its own, learner and all.

run         what stands for it in the main process
process     the life of the process
line        the connection between them
"""
