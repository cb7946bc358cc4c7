#!/bin/sh
# Round trips from Python to Python and from Python to Rust, in turns, in one group of PyTorch workers.
#
#     crates/farref-torch/tests/latency.sh [--calls 2000]
#
# Builds the Rust worker with optimization and prints, for each kind of call, the median and the 90th percentile of
# both and the ratio of the medians. FARREF_TORCH_PYTHON names the Python that has torch, python3 unless it is set.
set -eu
cd "$(dirname "$0")/../../.."
python="${FARREF_TORCH_PYTHON:-python3}"
peer="$(
    cargo test --release -p farref-torch --test interop --no-run --message-format json |
        "$python" -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "interop":
        print(message["executable"])'
)"
# All workers are on this host, whatever it is called.
export TP_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo
exec "$python" crates/farref-torch/tests/python/latency.py --run --peer-command "env FARREF_PEER=1 $peer" "$@"
