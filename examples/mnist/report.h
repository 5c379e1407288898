// What a run leaves behind: lines with a progress bar on a terminal, and a CSV (as report.py).

#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

namespace examples {

/// Prints lines; on a terminal it also keeps a bar below them.
class Progress {
 public:
  explicit Progress(int64_t total) : total_(total) {}

  void advance() {
    ++done_;
    const int64_t percent = 100 * done_ / total_;
    if (terminal_ && percent != drawn_) {
      drawn_ = percent;
      draw();
    }
  }

  void line(const std::string& text) const {
    clear();
    std::puts(text.c_str());
    std::fflush(stdout);
    if (terminal_) {
      draw();
    }
  }

  void draw() const {
    std::string bar(static_cast<size_t>(kWidth * done_ / total_), '#');
    bar.resize(kWidth, ' ');
    std::printf("\r[%s] %3d%% (%lld/%lld)", bar.c_str(), static_cast<int>(100 * done_ / total_),
                static_cast<long long>(done_), static_cast<long long>(total_));
    std::fflush(stdout);
  }

  void clear() const {
    if (!terminal_) {
      return;
    }
    std::fputs("\r\x1b[K", stdout);
    std::fflush(stdout);
  }

 private:
  static constexpr int64_t kWidth = 40;

  int64_t total_;
  int64_t done_ = 0;
  int64_t drawn_ = -1;
  bool terminal_ = isatty(STDOUT_FILENO) != 0;
};

/// One CSV row an iteration; without a path it does nothing.
class RunLog {
 public:
  explicit RunLog(const std::string& path) {
    if (path.empty()) {
      return;
    }
    file_.open(path);
    if (!file_) {
      throw std::runtime_error(path + ": cannot be written");
    }
    file_ << "iteration,loss,scale,skipped\n";
  }

  [[nodiscard]] bool is_open() const { return file_.is_open(); }

  void row(int64_t iteration, double loss, double scale, bool skipped) {
    if (!is_open()) {
      return;
    }
    std::array<char, 64> numbers{};
    std::snprintf(numbers.data(), numbers.size(), "%.9g,%.17g", loss, scale);
    file_ << iteration << ',' << numbers.data() << ',' << (skipped ? 1 : 0) << '\n';
  }

 private:
  std::ofstream file_;
};

}  // namespace examples
