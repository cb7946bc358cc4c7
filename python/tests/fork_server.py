"""Starts programs as forks of a process that has imported their modules already.

Importing torch takes seconds of processor time, a fork takes milliseconds. Each program is still a process of its own:
it has its own arguments, environment and output, and it ends as every Python program does. Programs whose subject is
the start of an interpreter, or an import, are started with `subprocess` instead.

The client is `ForkServer`; there is one for each list of modules and each process of pytest. This file is also the
server's program: ``fork_server.py socket module..``.
"""

import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types


class Forked:
    """A process that the server has forked off. It has what tests use of `subprocess.Popen`."""

    def __init__(self, status):
        self._status = status
        try:
            self.pid = int(status.readline())
        except (ConnectionError, ValueError):
            raise RuntimeError("the fork server has ended, most likely at an import: see its error above") from None
        self.returncode = None

    def poll(self):
        """Its exit status, or None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._read()
        return self.returncode

    def wait(self, timeout=None):
        """Waits for its end. Returns its exit status."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._read()
        return self.returncode

    def _read(self):
        self.returncode = int(self._status.readline() or -signal.SIGKILL)  # the server is gone, and its status is unknown
        self._status.close()

    def send_signal(self, number):
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A server's process, and the way to it."""

    def __init__(self, modules, environment):
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *modules]
            # Of its own session: Ctrl-C is for pytest, which ends this server by closing the socket.
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def start(self, stdout, stderr, *, arguments, environment, code=None, new_session=False):
        """Starts a program: `code`, or what ``python -m arguments..`` runs."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"."], [stdout, stderr, theirs.fileno()])
        request = {"arguments": arguments, "environment": environment, "code": code, "new_session": new_session}
        with ours, ours.makefile("w") as words:
            words.write(json.dumps(request) + "\n")
            words.flush()
            # One byte at a time: select() must see what has not been read.
            return Forked(open(os.dup(ours.fileno()), "rb", buffering=0))


@functools.cache
def fork_server(*modules):
    """This process's server that has these modules."""
    from testkit import environment

    return ForkServer(modules, environment())


def _serve(control):
    """Forks off a process for each request, and reports its end. Returns the request, in the new process."""
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _report(children)
        if control not in ready:
            continue
        _, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if not descriptors:  # pytest has ended
            _end(children)
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (control, woken, wakes, *children.values()):
                end.close()
            *outputs, status = descriptors
            for number, output in enumerate(outputs, 1):
                os.dup2(output, number)
                os.close(output)
            with open(status) as words:
                return json.loads(words.readline())
        children[pid] = socket.socket(fileno=descriptors.pop())
        children[pid].sendall(b"%d\n" % pid)
        for descriptor in descriptors:
            os.close(descriptor)


def _end(children):
    """Ends those that run, and the process groups of those that lead a session: what such a program
    has forked off would go on without it."""
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            leads_session = os.getpgid(pid) == pid
            (os.killpg if leads_session else os.kill)(pid, signal.SIGKILL)


def _report(children):
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as child:
            try:
                child.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            except OSError:  # the client is gone
                pass


def _become(request):
    """Makes this process the one that was asked for. Returns the code that it runs."""
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path.insert(0, os.getcwd())
    if request["code"] is None:
        module, *arguments = request["arguments"]
        sys.argv = [module, *arguments]
        return functools.partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
    sys.argv = ["-c", *request["arguments"]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    return functools.partial(exec, compile(request["code"], "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    for name in sys.argv[2:]:
        __import__(name)
    # A collection in a child would write to all that was imported, and so copy it page by page.
    gc.collect()
    gc.freeze()
    # Outside of all functions, as a program is: it ends with the interpreter.
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))()
