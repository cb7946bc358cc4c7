"""Programs of torch.distributed.rpc on farref, without a changed line.

``import farref.torch`` before torch, or ``python -m farref.torch script.py``: then everything of
``torch.distributed.rpc`` and ``torch.distributed.autograd`` runs on farref. PyTorch's own Python layer is used as it is;
what it calls below itself, ``torch._C._distributed_rpc`` and ``torch._C._distributed_autograd``, is farref's.

Needs torch, which farref does not bring. What is not there says so: RPC of TorchScript functions, and PyTorch's legacy
profiler on other workers (:class:`NotSupported`).
"""

import functools as _functools
import importlib.abc as _abc
import importlib.machinery as _machinery
import sys as _sys

__all__ = ["NotSupported", "install", "is_installed"]


class NotSupported(NotImplementedError, RuntimeError):
    """Something of torch.distributed.rpc that farref does not have. It says what to do instead."""


_REPLACED = ("torch.distributed.rpc", "torch.distributed.autograd")


def _plain_optimizers(module):
    """DistributedOptimizer has TorchScript for some classes of optimizers, which cannot ask for the gradients of farref's contexts;
    the classes themselves can."""
    if hasattr(module, "functional_optim_map"):
        module.functional_optim_map = {}


def _remote_train(module):
    """RemoteModule.train() forgets what it was told."""

    def train(self, mode=True):
        """Whether the module is to train, told to it where it is."""
        return self.module_rref.rpc_sync().train(mode)

    module._RemoteModule.train = train


def _not_in_contexts(module):
    """DDP's reducer asks PyTorch's own core for the context, and would reduce nothing."""
    own = module.DistributedDataParallel.forward

    @_functools.wraps(own)
    def forward(self, *inputs, **kwargs):
        grad = _sys.modules.get("farref.torch._grad")
        if grad is not None and grad.current_id() is not None and _sys.modules["torch"].is_grad_enabled():
            raise NotSupported(
                "DistributedDataParallel inside of a dist_autograd context: its gradients would not be reduced. Use it outside "
                "of the context, with backward() of its own, or average the gradients of the context yourself"
            )
        return own(self, *inputs, **kwargs)

    module.DistributedDataParallel.forward = forward


# Modules of PyTorch's that something is changed in when they have been loaded.
_AMENDED = {
    "torch.distributed.optim.optimizer": _plain_optimizers,
    "torch.distributed.nn.api.remote_module": _remote_train,
    "torch.nn.parallel.distributed": _not_in_contexts,
}


class _Before(_abc.MetaPathFinder):
    """Asked for every module that is imported: before PyTorch looks for its own core, there is another."""

    def find_spec(self, name, path=None, target=None):
        if name in _REPLACED:
            _replace()
        elif name in _AMENDED:
            spec = _machinery.PathFinder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Amended(spec.loader, _AMENDED[name])
            return spec
        return None


class _Amended(_abc.Loader):
    """Loads a module, and changes something in it."""

    def __init__(self, loader, amend):
        self._loader = loader
        self._amend = amend

    def __getattr__(self, name):
        return getattr(self._loader, name)  # where its source is, say

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._amend(module)


def _replace():
    from . import _seam

    _seam.replace(_sys.modules["torch._C"])


def install():
    """Lets torch.distributed.rpc run on farref. The import of this package has done it already."""
    if is_installed():
        return
    if any(name in _sys.modules for name in _REPLACED):
        raise ImportError(
            "torch has been imported before farref.torch, and has its own core already: "
            "import farref.torch first, or run the program with python -m farref.torch"
        )
    _sys.meta_path.insert(0, _Before())
    _let_children_too()


def _let_children_too():
    """Processes that ``torch.multiprocessing.spawn`` starts import the program's modules anew: they run on what their parent's
    run on."""
    from multiprocessing import spawn

    own = spawn.get_command_line

    def get_command_line(**settings):
        words = own(**settings)
        if "-c" in words:
            code = words.index("-c") + 1
            words[code] = f"import farref.torch; {words[code]}"
        return words

    spawn.get_command_line = get_command_line


def is_installed():
    """Whether torch.distributed.rpc runs on farref in this process, or will as soon as it is imported."""
    return any(isinstance(finder, _Before) for finder in _sys.meta_path)


install()
