// A small, strict option parser: `--name value`, `--name=value` and flags. An unknown option, a
// missing or malformed value and a stray argument are errors that show the usage.

#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace examples {

/// A mistake on the command line, as opposed to one in the data or the training.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ArgParser {
 public:
  explicit ArgParser(std::string description) : description_(std::move(description)) {}

  void flag(const std::string& name, bool* target, const std::string& help = "") {
    add_option(name, "", help, [target](const std::string&) { *target = true; });
  }

  void text(const std::string& name, std::string* target, const std::string& help = "") {
    add(name, upper(name), help, *target, [target](const std::string& value) { *target = value; });
  }

  void choice(const std::string& name, std::string* target, const std::vector<std::string>& choices,
              const std::string& help = "") {
    const std::string listed = c10::str("{", join(choices, ","), "}");
    add(name, listed, help, *target, [=](const std::string& value) {
      if (std::ranges::find(choices, value) == choices.end()) {
        throw UsageError(c10::str(name, ": '", value, "' is none of ", join(choices, ", ")));
      }
      *target = value;
    });
  }

  /// An integer, or a double, that is at least `least`.
  template <typename Number>
  void number(const std::string& name, Number* target, Number least, const std::string& help = "") {
    add(name, upper(name), help, shortest(*target), [=](const std::string& value) {
      Number parsed{};
      const char* end = value.data() + value.size();
      const auto [rest, error] = std::from_chars(value.data(), end, parsed);
      if (error != std::errc() || rest != end || !(parsed >= least) ||
          parsed > std::numeric_limits<Number>::max()) {
        throw UsageError(
            c10::str(name, ": '", value, "' is not a number of at least ", shortest(least)));
      }
      *target = parsed;
    });
  }

  void parse(int argc, char** argv) const {
    const std::string program = std::filesystem::path(argv[0]).filename().string();
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (std::ranges::any_of(
            words, [](const std::string& word) { return word == "-h" || word == "--help"; })) {
      std::fputs((usage(program) + help_text()).c_str(), stdout);
      std::exit(0);
    }
    try {
      parse_words(words);
    } catch (const UsageError& error) {
      std::fprintf(stderr, "%s%s: error: %s\n", usage(program).c_str(), program.c_str(),
                   error.what());
      std::exit(2);
    }
  }

 private:
  struct Option {
    std::string name;
    std::string value_name;  // empty for a flag
    std::string help;
    std::function<void(const std::string&)> apply;
  };

  void add(const std::string& name, const std::string& value_name, const std::string& help,
           const std::string& current, std::function<void(const std::string&)> apply) {
    const std::string shown = current.empty() ? help : c10::str(help, " (default: ", current, ")");
    add_option(name, value_name, shown, std::move(apply));
  }

  void add_option(const std::string& name, const std::string& value_name, const std::string& help,
                  std::function<void(const std::string&)> apply) {
    options_.push_back(
        {.name = name, .value_name = value_name, .help = help, .apply = std::move(apply)});
  }

  void parse_words(const std::vector<std::string>& words) const {
    for (size_t i = 0; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      const bool joined = words[i].starts_with("--") && equals != std::string::npos;
      const Option& option = find(joined ? words[i].substr(0, equals) : words[i]);
      if (option.value_name.empty()) {
        if (joined) {
          throw UsageError(option.name + " takes no value");
        }
        option.apply("");
      } else if (joined) {
        option.apply(words[i].substr(equals + 1));
      } else if (i + 1 < words.size() && !words[i + 1].starts_with("--")) {
        option.apply(words[++i]);
      } else {
        throw UsageError(option.name + " needs a value");
      }
    }
  }

  [[nodiscard]] const Option& find(const std::string& name) const {
    for (const Option& option : options_) {
      if (option.name == name) {
        return option;
      }
    }
    throw UsageError("unrecognized arguments: " + name);
  }

  [[nodiscard]] std::string usage(const std::string& program) const {
    std::string line = "usage: " + program + " [-h]";
    for (const Option& option : options_) {
      line += c10::str(" [", call(option), "]");
    }
    return line + "\n";
  }

  [[nodiscard]] std::string help_text() const {
    std::string text = c10::str("\n", description_, "\n\n");
    for (const Option& option : options_) {
      text += c10::str("  ", call(option), "\n");
      if (!option.help.empty()) {
        text += c10::str("        ", option.help, "\n");
      }
    }
    return text;
  }

  static std::string call(const Option& option) {
    return option.value_name.empty() ? option.name : option.name + " " + option.value_name;
  }

  static std::string upper(std::string_view name) {
    std::string result(name.substr(2));
    for (char& c : result) {
      c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    }
    return result;
  }

  static std::string join(const std::vector<std::string>& words, const std::string& separator) {
    std::string result;
    for (const std::string& word : words) {
      result += (result.empty() ? "" : separator) + word;
    }
    return result;
  }

  template <typename Number>
  static std::string shortest(Number value) {
    std::array<char, 32> buffer{};
    const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
    return std::string(buffer.data(), result.ptr);
  }

  std::string description_;
  std::vector<Option> options_;
};

/// Runs `body`; an exception becomes one line on stderr and exit status 1.
inline int run(const char* program, const std::function<void()>& body) {
  const std::string name = std::filesystem::path(program).filename().string();
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: error: %s\n", name.c_str(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: error: %s\n", name.c_str(), error.what());
  }
  return 1;
}

}  // namespace examples
