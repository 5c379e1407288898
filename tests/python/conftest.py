"""Options and fixtures of the Python tests."""

import pytest
import torch

pytest.register_assert_rewrite("stock_and_ours")


def pytest_addoption(parser):
    parser.addoption(
        "--programs",
        type=int,
        default=None,
        help="random programs of the differential test (default: a number that takes seconds)",
    )
    parser.addoption(
        "--seed", type=int, default=0, help="first seed of the differential test's programs"
    )


@pytest.fixture(autouse=True, scope="session")
def every_warning():
    """Warnings that PyTorch gives once a process would make the second of two runs differ."""
    torch.set_warn_always(True)
