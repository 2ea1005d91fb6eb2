"""Where device jobs run: in this process, on worker processes or on Ray actors, always with the same results.

The path of a job with worker processes: the engine submits it (`queued.py`), the parent process sends it to a worker
(`pool.py`), the worker runs it on its copy of the task (`worker.py`) and replies; the result waits in `queued.py`.
"""
