"""``python -m farref.torch script.py args..``: runs a program of torch.distributed.rpc on farref."""

import runpy
import sys

from . import install


def main():
    """Runs the script as Python would run it, or the module after ``-m``."""
    install()
    arguments = sys.argv[1:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments and not arguments[0].startswith("-"):
        import os

        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        sys.exit("usage: python -m farref.torch script.py [argument..]\n       python -m farref.torch -m module [argument..]")


if __name__ == "__main__":
    main()
