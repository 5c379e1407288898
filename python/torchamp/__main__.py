"""``python -m torchamp``: run a script on this package, measure it, tell what is installed."""

from __future__ import annotations

import argparse
import sys

import torchamp


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments up to the program's name, and its own, in which even "--" stays."""
    if words[:1] != ["run"]:
        return words, []
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        if words[place].startswith("-m"):  # a module's name, here or in the next word
            place += words[place] == "-m"
            break
        place += 2 if words[place] == "--device" else 1
    return words[: place + 1], words[place + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torchamp", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=torchamp.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run an unmodified program on torchamp",
        description="Run a program as Python does, with PyTorch's AMP names replaced by "
        "torchamp's.",
        usage="%(prog)s [-h] [--device cpu] (script | -m module) [arguments ...]",
        allow_abbrev=False,
    )
    run.add_argument(
        "--device",
        choices=["cpu"],
        help="map CUDA to the CPU: .cuda(), 'cuda' and torch.device('cuda'); float16 stays float16",
    )
    run.add_argument("-m", dest="module", metavar="module", help="a module, as in python -m")
    run.add_argument(
        "script",
        nargs="?",
        help="a file, a folder or a zip archive with a __main__.py, or - for the standard input",
    )
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

        if (options.script is None) == (options.module is None):
            run.error("a script or -m module is required")
        run_script(options.script, arguments, options.device, options.module)
    else:
        from torchamp._doctor import report

        print(report(), end="")


if __name__ == "__main__":
    main()
