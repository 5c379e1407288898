#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "ops/common/chunk_table.h"

// Lists of gradients for the tests, and the plain one-element-after-the-other reference.

namespace reference {

using torchamp::common::ChunkTable;
using torchamp::common::DType;

inline constexpr DType kAllTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                      DType::kBFloat16};

/// A tensor in an allocation that ends with it, so that AddressSanitizer sees one element more, and
/// starts `offset` elements after a 16-byte boundary.
class Gradient {
 public:
  Gradient(DType dtype, int64_t numel, int64_t offset = 0);
  Gradient(const Gradient& other);
  Gradient(Gradient&&) = default;

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int64_t numel() const { return numel_; }
  [[nodiscard]] void* data() const { return memory_.get() + offset_ * element_size(); }

  /// Values go through double; `set` rounds to the element type.
  [[nodiscard]] double get(int64_t index) const;
  void set(int64_t index, double value);

  /// The same bits, any NaN being like any other; and nothing written before the first element.
  [[nodiscard]] bool same_as(const Gradient& other) const;

 private:
  [[nodiscard]] int64_t element_size() const;
  [[nodiscard]] std::size_t bytes() const;

  DType dtype_;
  int64_t numel_;
  int64_t offset_;
  std::unique_ptr<std::byte[]> memory_;
};

using List = std::vector<Gradient>;

ChunkTable table_of(const List& list);

/// All tensors are same_as their counterparts.
bool same(const List& got, const List& expected);

/// What unscaling must do to one element: in float (double for float64), rounded once.
double multiplied(DType dtype, double value, float factor);

struct Unscaled {
  List list;
  bool found_inf;
};
Unscaled unscaled(const List& list, float inverse);

/// 2-norm of the list times `inverse`, in long double.
long double norm(const List& list, float inverse);

/// How to fill a list.
struct Filling {
  double smallest = 1e-6;  // magnitudes are spread evenly over the logarithm
  double largest = 1e6;    // float16: at most its own largest
};

/// A random list of mixed types, with sizes around the boundaries of packs and chunks, misaligned
/// starts and empty tensors. The same for the same seed.
List sample_list(std::mt19937& random, int max_tensors, const Filling& filling = {});

void fill(Gradient& gradient, std::mt19937& random, const Filling& filling);

/// A sample list, by `kind` (0 to 7) plain or with an element that is not finite, overflows when it
/// is unscaled, or vanishes.
List sample_list_of_kind(std::mt19937& random, int kind, int max_tensors);

/// Puts a value into the first, the last, or some element of a random tensor.
void plant(List& list, std::mt19937& random, double value);

}  // namespace reference
