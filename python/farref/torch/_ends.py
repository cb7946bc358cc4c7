"""Telling other workers that contexts are over: soon, and of many at once, since a program that trains ends one with every step."""

import atexit
import threading

from farref import _errors

# Seconds in which those that end are told together. Until then others keep what they have of them.
_SOON = 0.02


class Ends:
    """Those of one worker that are to be told."""

    def __init__(self):
        self._lock = threading.Lock()
        self._untold = {}
        self._thread = None
        self._is_over = threading.Event()
        atexit.register(self._ends)

    def tell(self, worker, context_id):
        """Will tell a worker, by its id, that a context is over."""
        with self._lock:
            self._untold.setdefault(worker, []).append(context_id)
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._run, name="farref-contexts", daemon=True)
                self._thread.start()

    def _run(self):
        """The thread is there as long as there is something to tell."""
        while True:
            self._is_over.wait(_SOON)
            with self._lock:
                untold, self._untold = self._untold, {}
                if not untold or self._is_over.is_set():
                    self._thread = None
                    return
            for worker, ended in untold.items():
                _tell(worker, ended)

    def _ends(self):
        """Before the interpreter does: no thread is to be in the middle of something then."""
        self._is_over.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self):
        """Nothing of this group is told any more: with its members their contexts are gone."""
        self._is_over.set()
        atexit.unregister(self._ends)


def _tell(worker, ended):
    from . import _agent, _grad

    if not _agent.is_current_rpc_agent_set():
        return
    agent = _agent.get_current_rpc_agent()
    try:
        peer = agent._peer(agent.get_worker_info(worker))
        # Nobody waits for that.
        peer.timeout(None).start(_grad.serve_ends, ended, agent._info.id)
    except (_errors.Error, RuntimeError):
        pass  # it is gone, and what it knew with it
