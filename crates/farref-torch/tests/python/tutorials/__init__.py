"""Programs as PyTorch's tutorials on RPC teach to write them. They know nothing of Rust.

Each has `run_worker(rank, world_size)`, which is all that one of its processes does, from `init_rpc` to `shutdown`.
What it returns on the worker that drives the program are numbers by which two runs can be compared. Nothing in them
is left to chance, so that they come to the same numbers whoever the workers are.
"""
