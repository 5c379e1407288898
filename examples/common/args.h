// A small, strict option parser: `--name value`, `--name=value` and flags. Anything else, and a value
// that does not fit, is an error that points to --help.

#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace examples {

class ArgParser {
 public:
  explicit ArgParser(std::string description) : description_(std::move(description)) {}

  void flag(const std::string& name, bool* target, const std::string& help = "") {
    add(name, "", help, "", [=](const std::string& value) {
      *target = true;
      return value.empty();
    });
  }

  void text(const std::string& name, std::string* target, const std::string& help = "") {
    add(name, "TEXT", help, *target, [=](const std::string& value) {
      *target = value;
      return !value.empty() && !value.starts_with("--");
    });
  }

  void choice(const std::string& name, std::string* target, const std::vector<std::string>& choices,
              const std::string& help = "") {
    add(name, "{" + c10::Join(",", choices) + "}", help, *target, [=](const std::string& value) {
      *target = value;
      return std::ranges::find(choices, value) != choices.end();
    });
  }

  /// An integer, or a double, that is at least `least`.
  template <typename Number>
  void number(const std::string& name, Number* target, Number least, const std::string& help = "") {
    add(name, c10::str("NUMBER>=", least), help, c10::str(*target), [=](const std::string& value) {
      const char* end = value.data() + value.size();
      const auto [rest, error] = std::from_chars(value.data(), end, *target);
      return error == std::errc() && rest == end && *target >= least &&
             *target <= std::numeric_limits<Number>::max();
    });
  }

  void parse(int argc, char** argv) const {
    const std::string program = std::filesystem::path(argv[0]).filename().string();
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "-h" || word == "--help") {
        print_help(program);
        std::exit(0);
      }
      const size_t equals = word.find('=');
      const auto option = std::ranges::find(options_, word.substr(0, equals), &Option::name);
      if (option == options_.end()) {
        fail(program, "unrecognized argument: " + word);
      }
      const std::string& expected = option->expected;
      std::string value;
      if (equals != std::string::npos) {
        value = word.substr(equals + 1);
      } else if (!expected.empty() && i + 1 < argc) {
        value = argv[++i];
      }
      if (!option->set(value)) {
        fail(program, c10::str(option->name, ": expected ",
                               expected.empty() ? "no value" : expected, ", got '", value, "'"));
      }
    }
  }

 private:
  struct Option {
    std::string name;
    std::string expected;  // empty for a flag
    std::string help;
    std::function<bool(const std::string&)> set;  // returns whether the value fits
  };

  void add(const std::string& name, const std::string& expected, const std::string& help,
           const std::string& current, std::function<bool(const std::string&)> set) {
    const std::string shown = current.empty() ? help : c10::str(help, " (default: ", current, ")");
    options_.push_back({.name = name, .expected = expected, .help = shown, .set = std::move(set)});
  }

  void print_help(const std::string& program) const {
    std::printf("usage: %s [OPTION]...\n\n%s\n\n", program.c_str(), description_.c_str());
    for (const Option& option : options_) {
      std::printf("  %s %s\n        %s\n", option.name.c_str(), option.expected.c_str(),
                  option.help.c_str());
    }
  }

  [[noreturn]] static void fail(const std::string& program, const std::string& message) {
    std::fprintf(stderr, "usage: %s [OPTION]... (--help lists them)\n%s: error: %s\n",
                 program.c_str(), program.c_str(), message.c_str());
    std::exit(2);
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
