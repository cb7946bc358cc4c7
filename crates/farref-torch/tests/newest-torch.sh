#!/bin/sh
# Runs all tests of farref-torch with the newest PyTorch that pip finds:
#
#     crates/farref-torch/tests/newest-torch.sh
#
# It goes into a virtual environment in the target directory, takes about 5 GB there, and is brought up to date by the
# next run. To use an interpreter that has torch and numpy already, whatever version, name it:
#
#     FARREF_TORCH_PYTHON=some/venv/bin/python crates/farref-torch/tests/newest-torch.sh
#
# Arguments go to `cargo test -p farref-torch`: `--test interop` for the groups with PyTorch alone,
# `--test interop -- autograd` for some of them. PYTHON names what makes the environment, `python3` unless it is set.
set -eu

say() {
    printf '%s\n' "newest-torch: $*" >&2
}

# The path as it is from everywhere: the tests run in other folders than this script.
absolute() {
    case $1 in
        /*) printf '%s\n' "$1" ;;
        *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# Prints the versions, if the interpreter has what the tests need.
versions() {
    "$1" -c '
import sys
import numpy
import torch
import torch.distributed.rpc as rpc

rpc.init_rpc
print("torch %s, numpy %s, Python %s" % (torch.__version__, numpy.__version__, sys.version.split()[0]))
'
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../../.." && pwd)

if [ -n "${CARGO_TARGET_DIR:-}" ]; then
    target=$(absolute "$CARGO_TARGET_DIR")
    CARGO_TARGET_DIR=$target
    export CARGO_TARGET_DIR
else
    target=$root/target
fi

if [ -n "${FARREF_TORCH_PYTHON:-}" ]; then
    found=$(command -v -- "$FARREF_TORCH_PYTHON") || {
        say "there is no $FARREF_TORCH_PYTHON (FARREF_TORCH_PYTHON)"
        exit 1
    }
    python=$(absolute "$found")
else
    venv=$target/newest-torch
    python=$venv/bin/python
    # A run that was interrupted may have left one without pip.
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        say "making a virtual environment in $venv"
        rm -rf -- "$venv"
        "${PYTHON:-python3}" -m venv "$venv" || {
            say "${PYTHON:-python3} makes no virtual environments (on Debian, install python3-venv), or let"
            say "FARREF_TORCH_PYTHON name an interpreter that has torch and numpy"
            exit 1
        }
    fi
    say "installing the newest torch: about 5 GB, the first time"
    "$python" -m pip install --upgrade torch numpy
fi

versions=$(versions "$python") || {
    say "$python has no torch.distributed.rpc, or no numpy"
    exit 1
}
say "$versions, in $python"

cd "$root"
FARREF_TORCH_PYTHON=$python
FARREF_REQUIRE_TORCH=1
FARREF_TORCH_PLANS=all
export FARREF_TORCH_PYTHON FARREF_REQUIRE_TORCH FARREF_TORCH_PLANS
cargo test -p farref-torch "$@"
say "all passed with $versions"
