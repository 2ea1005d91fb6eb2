"""Where device jobs run: in this process, on worker processes or on Ray actors, always with the same results.

The path of a job with worker processes: the engine submits it (`base.py`), the main process sends it to a worker, the
worker runs it on its copy of the task and replies (all in `pool.py`); the result waits in `base.py`.
"""
