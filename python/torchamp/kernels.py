"""The kernels of this package under PyTorch's own operators."""

from torchamp import _C

__all__ = ["install_kernels", "uninstall_kernels"]


def install_kernels() -> None:
    """Run PyTorch's operators of the GradScaler on the kernels of this package.

    ``aten::_amp_foreach_non_finite_check_and_unscale_`` and ``aten::_amp_update_scale_``, and with
    them ``torch.amp.GradScaler`` and its subclasses, use them from now on in the whole process: on
    the CPU, and on CUDA if they were built for it (``python -m torchamp doctor`` tells). Gradients
    that unscale to infinity then count as an overflow, see docs/differences.md.

    Calls are counted: each needs an ``uninstall_kernels``. Several threads may call it at once, but
    none may run one of the two operators meanwhile. Does not synchronise.
    """
    _C.install_kernels()


def uninstall_kernels() -> None:
    """Undo one ``install_kernels``; the last one brings back the kernels from before.

    Raises RuntimeError if nothing is installed.
    """
    _C.uninstall_kernels()
