"""Around a run: when it ends, where it is written, how it is watched, what came of it.

    from levada.run.until import Until                      # return=475 steps=100_000
    from levada.run.monitor import Monitor                  # counts env steps, episodes, returns
    from levada.run.directory import RunDirectory           # config.json, metrics.jsonl, summary.json
    from levada.run.checkpoint import save, newest, load    # safetensors + JSON
    from levada.run.sinks import JsonLines, TensorBoard
    from levada.run.display import make_display
    from levada.run.execute import execute                  # the loop that joins them

Errors:

    LevadaError
    ├── UntilError(ValueError)              the end of a run is not well described
    ├── RunDirectoryError(ValueError)       a run cannot be written there, or read from there
    └── CheckpointError(ValueError)         a checkpoint cannot be made, or is not what it should be
"""
