"""Communication between processes: sockets, shared memory, and the start and end of child processes."""
