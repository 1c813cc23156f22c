"""Parts of `benchmarks/growth.py`.

axis           sizes that take turns, the curves that they give, and the verdict on each
report         the tables and the plot
shards         main process per item, over the number of shards
observations   transport per item and per megabyte, over the size of an item
replays        insertions and draws per entry, over the number of entries
policies       time per step and policy, over the number of policies in one environment
run_length     time per item and memory, a minute and a day after the start
"""
