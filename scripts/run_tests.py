"""Runs CTest and pytest on a build folder, both to their end, and adds up what they counted."""

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass
class Count:
    """Test results; a runner that broke off counts as one failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text


def read_report(report: Path) -> Count:
    """Adds up a JUnit file."""
    count = Count()
    for suite in ElementTree.parse(report).iter("testsuite"):
        number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        skipped = number["skipped"] + int(suite.get("disabled", 0))
        count += Count(number["tests"] - failed - skipped, failed, skipped)
    return count


def run(report: Path, words: list[str], environment: dict[str, str] | None = None) -> Count:
    """Runs a test runner that writes a JUnit file."""
    report.unlink(missing_ok=True)
    print("+", *words, flush=True)
    done = subprocess.run(
        words, cwd=CHECKOUT, env={**os.environ, **(environment or {})}, check=False
    )
    count = read_report(report) if report.exists() else Count()
    if (done.returncode != 0 and not count.failed) or not count.passed + count.failed:
        print(f"run_tests.py: {words[0]} ended with status {done.returncode} and ran {count}")
        count += Count(failed=1)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build_dir", type=Path)
    parser.add_argument("--label", help="only the C++ tests with this label")
    arguments = parser.parse_args()
    build = arguments.build_dir.resolve()

    report = build / "ctest.xml"
    ctest = ["ctest", "--test-dir", str(build), "--parallel", str(os.cpu_count() or 1)]
    ctest += ["--output-on-failure", "--output-junit", str(report)]
    if arguments.label:
        ctest += ["--label-regex", f"^{arguments.label}$"]
    counts = {"ctest": run(report, ctest)}
    if not arguments.label:
        report = build / "pytest.xml"
        counts["pytest"] = run(
            report, ["pytest", f"--junitxml={report}"], {"TORCHAMP_BUILD_DIR": str(build)}
        )

    total = sum(counts.values(), Count())
    print("\n" + "; ".join(f"{runner}: {count}" for runner, count in counts.items()))
    print(total)
    sys.exit(total.failed > 0)


if __name__ == "__main__":
    main()
