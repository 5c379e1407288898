"""The compiled part of the package: conversions and calls of the C++ library."""

from typing import Any

import torch

def enter_autocast(
    region: object, device_type: str, dtype: torch.dtype, enabled: bool, cache_enabled: bool
) -> tuple[bool, torch.dtype, bool]: ...
def exit_autocast(region: object) -> bool: ...
def unscale_gradients(
    param_groups: list[dict[str, Any]],
    scale: torch.Tensor,
    scale_is_inverse: bool = False,
    found_inf: torch.Tensor | None = None,
    allow_fp16: bool = False,
) -> dict[torch.device, torch.Tensor] | None: ...
def clip_gradients(
    param_groups: list[dict[str, Any]],
    scale: torch.Tensor | None,
    max_norm: float,
    known: dict[torch.device, torch.Tensor],
    allow_fp16: bool = False,
) -> tuple[torch.Tensor, dict[torch.device, torch.Tensor]] | None: ...
def update_scale(
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_infs: list[torch.Tensor],
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> bool: ...
def load_state(path: str) -> dict[str, float | int]: ...
def native_kernels() -> list[str]: ...
def cpu_instruction_set() -> str: ...
def install_kernels() -> None: ...
def uninstall_kernels() -> None: ...
