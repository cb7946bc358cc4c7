"""PyTorch's legacy profiler does not see calls of farref's: it says so, instead of showing nothing."""


def _refuse():
    from . import NotSupported

    raise NotSupported(
        "PyTorch's legacy profiler across workers is not supported by farref.torch: "
        "use torch.profiler in each process, and `farref top` or snapshots for the calls between them"
    )


class RemoteProfilerManager:
    """Which call the profiler is asked about."""

    @staticmethod
    def set_current_profiling_key(key):
        """Called only when the legacy profiler is on."""
        _refuse()


def enable_server_process_global_profiler(new_config):
    """Not there."""
    _refuse()


def disable_server_process_global_profiler():
    """Not there."""
    _refuse()
