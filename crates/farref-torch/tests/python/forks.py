"""A server that has imported torch and forks a child for each Python worker.

    python3 forks.py SOCKET

An import of torch takes seconds, and a fork does not. The server listens on the Unix socket
SOCKET. It first prints `{"missing": null}`, or why torch or numpy cannot be imported, and ends in
the second case. It ends when its standard input ends, and kills its children then.

A client opens a connection for each child and sends a line,
`{"args": [..], "out": path, "err": path}`: the arguments of `worker.py`, and files to which the
child's standard output and error are appended. The server answers with the line
`{"ended": code}` when the child has ended; the number of a signal is negative. A client that
closes its connection kills the child.

The server must not run a second thread: a child has only the thread that forked it.
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback

# Names the socket of the server that has forked this process.
VARIABLE = "FARREF_TEST_FORKS"


class Server:
    def __init__(self, path):
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.pid = os.getpid()
        self.children = set()
        self.running = True
        self.watch(self.listener, self.accept)
        self.watch(sys.stdin, self.stop)

    def watch(self, file, action):
        self.selector.register(file, selectors.EVENT_READ, action)

    def serve(self):
        while self.running:
            for key, _ in self.selector.select():
                key.data()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.running = False

    def accept(self):
        connection, _ = self.listener.accept()
        Child(self, connection)

    def enter_child(self):
        """Closes what belongs to the server, in the child."""
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fd)
            elif key.fileobj is not sys.stdin:
                key.fileobj.close()
        self.selector.close()
        if sys.platform == "linux":
            PR_SET_PDEATHSIG = 1
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # The server may have died before the call.
            if os.getppid() != self.pid:
                os._exit(1)


class Child:
    """A connection, and the process that it has asked for."""

    def __init__(self, server, connection):
        self.server, self.connection = server, connection
        self.asked, self.pid = b"", None
        server.watch(connection, self.read)

    def read(self):
        try:
            data = self.connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.asked += data
        if not data:
            self.server.selector.unregister(self.connection)
            self.connection.close()
            if self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)
        elif self.pid is None and self.asked.endswith(b"\n"):
            self.start(**json.loads(self.asked))

    def start(self, args, out, err):
        assert threading.active_count() == 1, "a fork of a process with threads: %s" % threading.enumerate()
        # The child's end is closed when the child ends.
        alive, childs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.server.enter_child()
            os.close(alive)
            run_worker(args, out, err)
        os.close(childs)
        self.server.children.add(self.pid)
        self.server.watch(alive, lambda: self.ended(alive))

    def ended(self, alive):
        self.server.selector.unregister(alive)
        os.close(alive)
        _, status = os.waitpid(self.pid, 0)
        self.server.children.remove(self.pid)
        self.pid = None
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if self.connection.fileno() >= 0:
            try:
                self.connection.sendall(json.dumps({"ended": code}).encode() + b"\n")
            except ConnectionError:
                pass


def run_worker(args, out, err):
    """What a child does. It does not return."""
    import harness

    harness.progress = os.fdopen(os.dup(2), "w")
    for number, path, flags in [
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, err, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ]:
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    code = 1
    try:
        import worker

        sys.argv = ["worker.py", *args]
        worker.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    # Before torch, whose pools of threads would not survive a fork.
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    try:
        import numpy  # noqa: F401
        import torch.distributed.rpc  # noqa: F401
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    for module in ["worker", "harness", "torch.distributed.autograd", "torch.distributed.optim"]:
        importlib.import_module(module)
    # A collection in a child would write to all that was imported, and so copy it page by page.
    gc.collect()
    gc.freeze()
    os.environ[VARIABLE] = sys.argv[1]
    server = Server(sys.argv[1])
    print(json.dumps({"missing": None}), flush=True)
    server.serve()


class Forked:
    """A child of the server, like `subprocess.Popen`. Closing it kills the child."""

    def __init__(self, args, out, err, server=None):
        self.returncode = None
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(server or os.environ[VARIABLE])
        self.connection.sendall(json.dumps({"args": args, "out": out, "err": err}).encode() + b"\n")

    def poll(self, wait=False):
        if self.returncode is None:
            self.connection.setblocking(wait)
            try:
                answer = self.connection.recv(1 << 10)
            except BlockingIOError:
                return None
            assert answer, "the server of forks.py has ended"
            self.returncode = json.loads(answer)["ended"]
        return self.returncode

    def wait(self):
        return self.poll(wait=True)

    def kill(self):
        self.connection.close()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL


class Forks:
    """Starts the server with an interpreter. To be used in a `with`."""

    def __init__(self, python):
        self.folder = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self.folder.name, "forks")
        command = [python, os.path.abspath(__file__), self.socket]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        missing = json.loads(self.process.stdout.readline() or '{"missing": "forks.py"}')["missing"]
        assert missing is None, "%s: %s" % (python, missing)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()
        self.folder.cleanup()


if __name__ == "__main__":
    main()
