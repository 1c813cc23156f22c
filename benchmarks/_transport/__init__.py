"""What `benchmarks/transport.py` is made of.

payloads    what is moved, and what the reader answers
turns       the writer's end of a transport, and how it is timed
ours        levada's transport, and memcpy
programs    who is compared, and the processes that do it
measure     all turns, and what they give
report      the tables, the targets, and the same as JSON

`payloads` and `turns` are also used by the peers' programs, `compare/libraries/transport_*.py`: they need numpy and nothing else.
"""
