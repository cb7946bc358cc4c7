"""Which processes of this host may still use memory that was lent to them, whatever their group thinks of them.

A lender has a file in memory, its ledger, with a place for each tensor that it lends. Who uses the tensor has that place locked,
through the same file, and the kernel unlocks it when the process ends. References do not tell as much: they are given up also for workers
that have left, or were taken for dead, and whose processes go on.

Invariants:

- **LG-1** A process locks the place before it uses the memory, and unlocks it when its work on the memory has ended.
- **LG-2** Who lends writes that a lending is over, and looks for locks then. Who borrows locks, and looks then whether it is over. So at
  least one of the two sees the other.
- **LG-3** A process that ends may unlock before the driver has stopped its work. The processes are listed in the ledger: as long as one of
  them has unlocked all and has not ended, nothing is taken for unused; for a minute at most, since it may be another program by now (``exec``).
"""

import collections
import errno
import fcntl
import itertools
import os
import pathlib
import struct
import threading
import time

# The ledger: whose it is, who has used it (number and start of the process), and from there on the number of the lending at each place.
_OWNER, _LIST, _PLACES = 0, 64, 8192
_PROCESS = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_NAME = "farref-cuda"
# So many processes can use what one process lends.
MOST = 256
# Seconds that a process may take to end.
_TEARDOWN = 60.0
# What fcntl() is given: kind, whence, start, length, process.
_LOCK = struct.Struct("hhqqi4x")

# Of a tensor that is lent: the process and the file with the ledger, the place there, and the number of the lending.
Entry = collections.namedtuple("Entry", "pid file place number")


def _at(place):
    return _PLACES + place * _NUMBER.size


def _lock(file, at, kind):
    """Locks a byte, or unlocks it. The lock belongs to the open file, not to the process: forks have their own."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, at, 1, 0))


def _is_locked(file, at):
    """Whether others have it locked."""
    found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    return _LOCK.unpack(found)[0] != fcntl.F_UNLCK


def _of_process(pid):
    """Its state, and when it began. Raises OSError if there is none."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def has_ended(pid, began):
    """Whether a process has ended, with all of its threads."""
    try:
        state, since = _of_process(pid)
        return since != began or state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


class Ledger:
    """What this process lends."""

    def __init__(self, owner):
        self._file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.pwrite(self._file, owner, _OWNER)
        os.ftruncate(self._file, _PLACES)
        self._striking = threading.Lock()
        # Processes that are ending, and since when that is known.
        self._ending = {}
        self._numbers, self._unused, self._places = itertools.count(1), collections.deque(), itertools.count()

    def open(self):
        """A lending begins: its entry."""
        try:
            place = self._unused.pop()
        except IndexError:
            place = next(self._places)
        number = next(self._numbers)
        os.pwrite(self._file, _NUMBER.pack(number), _at(place))
        return Entry(os.getpid(), self._file, place, number)

    def close(self, entry):
        """It is over: nobody begins to use it any more (LG-2)."""
        os.pwrite(self._file, _NUMBER.pack(0), _at(entry.place))

    def is_unused(self, entry):
        """Whether nobody can use any more what was lent."""
        return not _is_locked(self._file, _at(entry.place)) and not self._is_one_ending()

    def forget(self, entry):
        """Its place is free for others."""
        self._unused.append(entry.place)

    def _is_one_ending(self):
        listed = os.pread(self._file, MOST * _PROCESS.size, _LIST).rstrip(b"\0")
        for number in range(-(-len(listed) // _PROCESS.size)):
            at = _LIST + number * _PROCESS.size
            # In one piece: who lists itself has it locked, and writes all of it.
            pid, began = _PROCESS.unpack(os.pread(self._file, _PROCESS.size, at))
            if pid and not _is_locked(self._file, at):
                seen = self._ending.setdefault((pid, began), time.monotonic())
                if not has_ended(pid, began) and time.monotonic() < seen + _TEARDOWN:
                    return True  # LG-3
                self._strike_off(at, pid)
                self._ending.pop((pid, began), None)
        return False

    def _strike_off(self, at, pid):
        # Not waited for: this may be called by a destructor, in the middle of the same.
        if self._striking.acquire(blocking=False):
            try:
                # Nobody else takes its line before it is empty.
                if _PROCESS.unpack(os.pread(self._file, _PROCESS.size, at))[0] == pid and not _is_locked(self._file, at):
                    os.pwrite(self._file, bytes(_PROCESS.size), at)
            finally:
                self._striking.release()


class _Opened:
    """The ledger of another process."""

    __slots__ = ("file", "pid", "users")

    def __init__(self, file, pid):
        self.file, self.pid = file, pid
        # How many use each place, here.
        self.users = collections.Counter()


class Borrowed:
    """What this process uses of others."""

    def __init__(self):
        self._lock = threading.Lock()
        self._opened = {}

    def take(self, owner, entry):
        """One more user here. False if the lending is over. Raises OSError if the owner's ledger cannot be had."""
        with self._lock:
            opened = self._opened.get(owner)
            if opened is None:
                self._close_unused()
                opened = self._opened[owner] = self._open(owner, entry)
            if not opened.users[entry.place]:
                _lock(opened.file, _at(entry.place), fcntl.F_RDLCK)  # LG-1
            if os.pread(opened.file, _NUMBER.size, _at(entry.place)) != _NUMBER.pack(entry.number):
                if not opened.users[entry.place]:
                    _lock(opened.file, _at(entry.place), fcntl.F_UNLCK)
                return False
            opened.users[entry.place] += 1
            return True

    def give_back(self, owner, entry):
        """One user less."""
        with self._lock:
            opened = self._opened[owner]
            opened.users[entry.place] -= 1
            if not opened.users[entry.place]:
                del opened.users[entry.place]
                _lock(opened.file, _at(entry.place), fcntl.F_UNLCK)

    def forked(self):
        """In a process that was forked off: the locks are not its own."""
        for opened in self._opened.values():
            os.close(opened.file)

    def _open(self, owner, entry):
        path = f"/proc/{entry.pid}/fd/{entry.file}"
        # Before anything else of that process is opened, such as a device.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            raise OSError(errno.ESTALE, "another process has the number of the one that lends, or another file")
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.pread(file, len(owner), _OWNER) != owner:
                raise OSError(errno.ESTALE, "another process has the number of the one that lends")
            self._enlist(file)
        except BaseException:
            os.close(file)
            raise
        return _Opened(file, entry.pid)

    @staticmethod
    def _enlist(file):
        pid = os.getpid()
        for number in range(MOST):
            at = _LIST + number * _PROCESS.size
            try:
                _lock(file, at, fcntl.F_WRLCK)
            except BlockingIOError:
                continue
            if not any(os.pread(file, _PROCESS.size, at)):
                os.pwrite(file, _PROCESS.pack(pid, _of_process(pid)[1]), at)
                return
            # Of one that has ended, or is ending: its owner looks at that.
            _lock(file, at, fcntl.F_UNLCK)
        raise OSError(errno.EMFILE, f"{MOST} processes use memory of that one already")

    def _close_unused(self):
        """Ledgers of processes that are gone."""
        for owner, opened in list(self._opened.items()):
            if not opened.users and not os.path.exists(f"/proc/{opened.pid}"):
                del self._opened[owner]
                os.close(opened.file)
