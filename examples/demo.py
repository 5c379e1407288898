"""Runs both examples in C++ and in Python, prints a table of the results and draws their curves."""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time it is imported late: it takes a second
    from matplotlib.axes import Axes

EXAMPLES = Path(__file__).resolve().parent
CHECKOUT = EXAMPLES.parent
LANGUAGES = ("C++", "Python")
PRECISIONS = ("fp32", "fp16", "bf16")
# So short that the scale climbs to its limit within the demo, and the scaler can be seen at work.
GROWTH_INTERVAL = 20
SMOOTHING = 15  # iterations that the loss is averaged over in the plot
# Colour and width: wide below narrow, so that curves which coincide can all be seen.
LINES = {"fp32": ("#9a9a9a", 6.0), "fp16": ("#1f6fb4", 2.6), "bf16": ("#e8871e", 1.2)}
IMAGES_PER_RUN = 20_000  # what the number of epochs aims at


@dataclass
class Run:
    """What one training run left behind; one list entry an iteration."""

    language: str
    precision: str
    accuracy: float
    seconds: float
    losses: list[float]
    scales: list[float]
    skipped: list[bool]


def command(build_dir: Path, example: str, language: str) -> list[str]:
    if language == "C++":
        return [str(build_dir / "examples" / example)]
    return [sys.executable, str(EXAMPLES / example / f"{example}.py")]


def output_of(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"demo.py: error: {words[0]} cannot be run: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"{done.stderr}demo.py: error: this failed: {' '.join(words)}")
    return done.stdout


def run_mlp(build_dir: Path, device: str) -> None:
    outputs = {
        language: output_of([*command(build_dir, "mlp", language), "--device", device])
        for language in LANGUAGES
    }
    if len(set(outputs.values())) == 1:
        print(f"mlp, float16, {' and '.join(LANGUAGES)} print the same:")
        print(indented(outputs["C++"]))
        return
    for language, text in outputs.items():
        print(f"mlp, float16, {language}:\n{indented(text)}")
    if device == "cpu":
        sys.exit("demo.py: error: the outputs of mlp differ")


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def run_mnist(words: list[str], language: str, precision: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.csv"
        text = output_of([*words, "--precision", precision, "--csv", str(log)])
        with log.open(newline="") as file:
            rows = list(csv.DictReader(file))
    return Run(
        language=language,
        precision=precision,
        accuracy=number_after("Test accuracy", text),
        seconds=number_after("Training time", text),
        losses=[float(row["loss"]) for row in rows],
        scales=[float(row["scale"]) for row in rows],
        skipped=[row["skipped"] == "1" for row in rows],
    )


def number_after(label: str, text: str) -> float:
    found = re.search(rf"^{label}: ([0-9.]+)", text, re.MULTILINE)
    if not found:
        sys.exit(f"demo.py: error: mnist printed no line '{label}'")
    return float(found.group(1))


def print_table(runs: list[Run]) -> None:
    print("language  precision  final loss  accuracy  seconds  skipped steps")
    for run in runs:
        print(
            f"{run.language:<8}  {run.precision:<9}  {run.losses[-1]:10.6f}  {run.accuracy:8.4f}  "
            f"{run.seconds:7.2f}  {sum(run.skipped):3d} of {len(run.losses)}"
        )


def print_comparison(runs: list[Run]) -> None:
    """Says how far the two languages are apart, over all precisions and iterations."""
    cpp, python = ([run for run in runs if run.language == language] for language in LANGUAGES)
    pairs = [
        (a, b)
        for one, other in zip(cpp, python, strict=True)
        for a, b in zip(one.losses, other.losses, strict=True)
    ]
    equal = sum(f"{a:.6g}" == f"{b:.6g}" for a, b in pairs)
    print(f"{equal} of {len(pairs)} losses are equal in C++ and Python to six digits.")


def smoothed(values: list[float]) -> list[float]:
    windows = (values[max(0, i + 1 - SMOOTHING) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def draw(runs: list[Run], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (loss_axes, scale_axes) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 7), height_ratios=[5, 3], layout="constrained"
    )
    for run in runs:
        if run.language == "C++":
            draw_lines(loss_axes, scale_axes, run)
        else:
            draw_dots(loss_axes, run)
    loss_axes.set_title("MNIST in three precisions, trained with torchamp in C++ and Python")
    loss_axes.set_ylabel(f"loss (mean of {SMOOTHING} iterations)")
    loss_axes.set_ylim(bottom=0)
    scale_axes.set_title(
        f"The scale doubles after {GROWTH_INTERVAL} iterations without overflow and halves at one",
        fontsize="medium",
    )
    scale_axes.set_ylabel("loss scale")
    scale_axes.set_yscale("log", base=2)
    scale_axes.set_xlabel("iteration")
    for axes in (loss_axes, scale_axes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    loss_axes.legend(frameon=False, ncols=2)
    scale_axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.42))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def draw_lines(loss_axes: "Axes", scale_axes: "Axes", run: Run) -> None:
    color, linewidth = LINES[run.precision]
    label = f"{run.precision}, C++"
    loss_axes.plot(smoothed(run.losses), color=color, linewidth=linewidth, label=label)
    label = run.precision if max(run.scales) > 1 else f"{run.precision} (not scaled)"
    scale_axes.plot(
        run.scales, drawstyle="steps-post", color=color, linewidth=linewidth, label=label
    )
    draw_skips(scale_axes, run)


def draw_dots(axes: "Axes", run: Run) -> None:
    """Dots are enough for a curve that is there already; each precision has its own places."""
    curve = smoothed(run.losses)
    step = max(1, len(curve) // 20)
    places = range(PRECISIONS.index(run.precision) * step // 3, len(curve), step)
    axes.plot(
        places,
        [curve[i] for i in places],
        linestyle="none",
        marker="o",
        markersize=5.5,
        markerfacecolor="white",
        markeredgewidth=1.4,
        markeredgecolor=LINES[run.precision][0],
        label=f"{run.precision}, Python",
    )


def draw_skips(axes: "Axes", run: Run) -> None:
    places = [i for i, skipped in enumerate(run.skipped) if skipped]
    if places:
        axes.plot(
            places,
            [run.scales[i] for i in places],
            linestyle="none",
            marker="x",
            markersize=7,
            color="#c0392b",
            label="overflow, step skipped",
        )


def default_epochs(data: Path) -> int:
    """Few, and fewer the more images there are."""
    labels = data / "train-labels-idx1-ubyte"
    images = labels.stat().st_size - 8 if labels.is_file() else IMAGES_PER_RUN
    return max(1, IMAGES_PER_RUN // max(1, images))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--build-dir", type=Path, required=True, help="has examples/mlp in it")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "out" / "demo.png", help="the plot")
    parser.add_argument("--data", type=Path, help="IDX files to use instead of data/mnist")
    parser.add_argument("--epochs", type=int, help="default: by the size of the data")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    data: Path = args.data or CHECKOUT / "data" / "mnist"
    if args.data is None:
        print(output_of([sys.executable, str(EXAMPLES / "mnist" / "get_data.py")]), end="")
    epochs = args.epochs or default_epochs(data)

    run_mlp(args.build_dir, args.device)

    options = ["--logits", "--threads", "1", "--device", args.device, "--data", str(data)]
    options += ["--epochs", str(epochs), "--growth-interval", str(GROWTH_INTERVAL)]
    runs = []
    for language in LANGUAGES:
        for precision in PRECISIONS:
            print(f"mnist, {epochs} epochs, {precision}, {language} ...", flush=True)
            words = [*command(args.build_dir, "mnist", language), *options]
            runs.append(run_mnist(words, language, precision))
    print()
    print_table(runs)
    print()
    print_comparison(runs)
    draw(runs, args.out)
    print(f"Loss and scale are drawn in {args.out}")


if __name__ == "__main__":
    main()
