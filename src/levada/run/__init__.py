"""Infrastructure of a run: stopping conditions, directory, checkpoints, metrics, display and summary.

    from levada.run.until import Until                      # return=475 steps=100_000
    from levada.run.monitor import Monitor                  # counts env steps, episodes, returns
    from levada.run.storage.directory import RunDirectory           # config.json, metrics.jsonl, summary.json
    from levada.run.storage.checkpoint import save, newest, load    # safetensors + JSON
    from levada.run.sinks import JsonLines, TensorBoard
    from levada.run.display.displays import make_display
    from levada.run.loop import Loop                     # the loop that joins them

Errors:

    LevadaError
    ├── UntilError(ValueError)              a stopping condition is invalid
    ├── RunDirectoryError(ValueError)       a run directory cannot be written or read
    └── CheckpointError(ValueError)         a checkpoint cannot be written, or is invalid
"""
