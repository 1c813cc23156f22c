"""Worker processes that run shards: the handle in the main process, the server in the worker, their messages."""
