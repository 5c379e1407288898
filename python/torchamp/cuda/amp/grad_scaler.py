"""The names of ``torch.cuda.amp.grad_scaler``."""

from torchamp.amp import grad_scaler
from torchamp.amp.grad_scaler import OptState

__all__ = ["GradScaler", "OptState"]


class GradScaler(grad_scaler.GradScaler):
    """``torchamp.GradScaler("cuda", ...)`` with the arguments of ``torch.cuda.amp.GradScaler``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        require_device: bool = False,
    ) -> None:
        super().__init__(
            "cuda",
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            require_device=require_device,
        )
