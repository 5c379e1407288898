"""``python -m torchamp``: run a script on this package, measure it, tell what is installed."""

from __future__ import annotations

import argparse
import sys

import torchamp


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments up to the script's name, and the script's, in which even "--" is its own."""
    if words[:1] != ["run"]:
        return words, []
    script = 1
    while script < len(words) and words[script].startswith("-"):
        script += 2 if words[script] == "--device" else 1
    return words[: script + 1], words[script + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torchamp", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=torchamp.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run an unmodified script on torchamp",
        description="Run a script as Python does, with PyTorch's AMP names replaced by torchamp's.",
        allow_abbrev=False,
    )
    run.add_argument(
        "--device",
        choices=["cpu"],
        help="map CUDA to the CPU: .cuda(), 'cuda' and torch.device('cuda'); float16 stays float16",
    )
    run.add_argument("script")
    run.add_argument("arguments", nargs="*", help="arguments of the script")
    commands.add_parser(
        "doctor", help="tell versions, devices, kernels and what low precision does here"
    )
    commands.add_parser("bench", help="measure torchamp beside stock PyTorch", add_help=False)
    if sys.argv[1:2] == ["bench"]:  # has a parser of its own
        from torchamp.bench import main as bench

        sys.exit(bench(sys.argv[2:]))
    ours, arguments = _split(sys.argv[1:])
    options = parser.parse_args(ours)
    if options.command == "run":
        from torchamp._run import run as run_script

        run_script(options.script, arguments, options.device)
    else:
        from torchamp._doctor import report

        print(report(), end="")


if __name__ == "__main__":
    main()
