"""The live page of runs: a server in a process of its own, which reads what runs write, and the page that it serves."""
