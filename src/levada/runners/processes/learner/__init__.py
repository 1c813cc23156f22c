"""A run in a separate process, including the learner.

run         its proxy in the main process
process     the main function of the process
line        the connection between them
"""
