"""What ties a process to the one that started it."""

import ctypes


def end_with_parent():
    """Ends this process when the one that started it ends. Linux only."""
    set_parent_death_signal, kill = 1, 9
    try:
        ctypes.CDLL(None).prctl(set_parent_death_signal, kill)
    except AttributeError:
        pass
