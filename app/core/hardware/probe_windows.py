"""RAM and processors of a Windows machine. Blocking; called by `probe.py` only.

What can be had is the lower of free RAM and the commit that is left: an allocation that the commit
limit refuses fails, however much RAM is free.
"""

import psutil

from app.core.hardware.memory import Cores, Memory


def read_memory() -> Memory:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    commit_left = memory.available + swap.free
    return Memory(memory.total, min(memory.available, commit_left), swap.total, swap.free)


def read_cores() -> Cores:
    logical = psutil.cpu_count() or 1
    return Cores(psutil.cpu_count(logical=False) or logical, logical)
