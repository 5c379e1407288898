"""What a run leaves behind: lines with a progress bar on a terminal, and a CSV (as report.h)."""

import sys
from pathlib import Path


class Progress:
    """Prints lines; on a terminal it also keeps a bar below them."""

    WIDTH = 40

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.drawn = -1
        self.terminal = sys.stdout.isatty()

    def advance(self) -> None:
        self.done += 1
        percent = 100 * self.done // self.total
        if self.terminal and percent != self.drawn:
            self.drawn = percent
            self.draw()

    def line(self, text: str) -> None:
        self.clear()
        print(text, flush=True)
        if self.terminal:
            self.draw()

    def draw(self) -> None:
        bar = "#" * (self.WIDTH * self.done // self.total)
        percent = 100 * self.done // self.total
        print(f"\r[{bar:<{self.WIDTH}}] {percent:3d}% ({self.done}/{self.total})", end="")
        sys.stdout.flush()

    def clear(self) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", flush=True)


class RunLog:
    """One CSV row an iteration; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self.file = path.open("w") if path else None
        self.write("iteration,loss,scale,skipped\n")

    def row(self, iteration: int, loss: float, scale: float, skipped: bool) -> None:
        self.write(f"{iteration},{loss:.9g},{scale:.17g},{int(skipped)}\n")

    def close(self) -> None:
        if self.file:
            self.file.close()

    def write(self, text: str) -> None:
        if self.file:
            self.file.write(text)
