#include "gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "small_float.h"

namespace reference {

namespace {

constexpr auto kCanary = std::byte{0xa5};

template <typename T>
T read(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

template <typename T>
void write(void* data, int64_t index, T value) {
  std::memcpy(static_cast<std::byte*>(data) + index * int64_t{sizeof(T)}, &value, sizeof(T));
}

int64_t pick(std::mt19937& random, int64_t count) {
  return std::uniform_int_distribution<int64_t>(0, count - 1)(random);
}

}  // namespace

Gradient::Gradient(DType dtype, int64_t numel, int64_t offset)
    : dtype_(dtype), numel_(numel), offset_(offset), memory_(new std::byte[bytes()]) {
  std::fill_n(memory_.get(), offset * element_size(), kCanary);
}

Gradient::Gradient(const Gradient& other)
    : dtype_(other.dtype_),
      numel_(other.numel_),
      offset_(other.offset_),
      memory_(new std::byte[bytes()]) {
  std::copy_n(other.memory_.get(), bytes(), memory_.get());
}

int64_t Gradient::element_size() const {
  return static_cast<int64_t>(torchamp::common::size_of(dtype_));
}

std::size_t Gradient::bytes() const {
  return static_cast<std::size_t>((offset_ + numel_) * element_size());
}

double Gradient::get(int64_t index) const {
  switch (dtype_) {
    case DType::kFloat32:
      return read<float>(data(), index);
    case DType::kFloat64:
      return read<double>(data(), index);
    case DType::kFloat16:
      return decode(kHalf, read<uint16_t>(data(), index));
    case DType::kBFloat16:
      return decode(kBFloat16, read<uint16_t>(data(), index));
  }
  return 0.0;
}

void Gradient::set(int64_t index, double value) {
  switch (dtype_) {
    case DType::kFloat32:
      return write(data(), index, static_cast<float>(value));
    case DType::kFloat64:
      return write(data(), index, value);
    case DType::kFloat16:
      return write(data(), index, encode(kHalf, value));
    case DType::kBFloat16:
      return write(data(), index, encode(kBFloat16, value));
  }
}

bool Gradient::same_as(const Gradient& other) const {
  if (std::memcmp(memory_.get(), other.memory_.get(), bytes()) == 0) {
    return true;
  }
  for (int64_t i = 0; i < offset_ * element_size(); ++i) {
    if (memory_[static_cast<std::size_t>(i)] != kCanary) {
      return false;
    }
  }
  for (int64_t i = 0; i < numel_; ++i) {
    const double mine = get(i);
    const double theirs = other.get(i);
    const bool same = mine == theirs && std::signbit(mine) == std::signbit(theirs);
    if (!same && !(std::isnan(mine) && std::isnan(theirs))) {
      return false;
    }
  }
  return true;
}

ChunkTable table_of(const List& list) {
  ChunkTable table(list.size());
  for (const Gradient& gradient : list) {
    (void)table.add(gradient.data(), gradient.numel(), gradient.dtype());
  }
  return table;
}

bool same(const List& got, const List& expected) {
  return std::equal(got.begin(), got.end(), expected.begin(), expected.end(),
                    [](const Gradient& a, const Gradient& b) { return a.same_as(b); });
}

double multiplied(DType dtype, double value, float factor) {
  if (dtype == DType::kFloat64) {
    return value * static_cast<double>(factor);
  }
  const float product = static_cast<float>(value) * factor;
  switch (dtype) {
    case DType::kFloat16:
      return decode(kHalf, encode(kHalf, product));
    case DType::kBFloat16:
      return decode(kBFloat16, encode(kBFloat16, product));
    default:
      return product;
  }
}

Unscaled unscaled(const List& list, float inverse) {
  Unscaled result{list, false};
  for (Gradient& gradient : result.list) {
    for (int64_t i = 0; i < gradient.numel(); ++i) {
      const double product = multiplied(gradient.dtype(), gradient.get(i), inverse);
      result.found_inf |= !std::isfinite(product);
      gradient.set(i, product);
    }
  }
  return result;
}

long double norm(const List& list, float inverse) {
  long double sum = 0.0L;
  for (const Gradient& gradient : list) {
    for (int64_t i = 0; i < gradient.numel(); ++i) {
      const long double value = gradient.get(i);
      sum += value * value;
    }
  }
  return std::sqrt(sum) * inverse;
}

void fill(Gradient& gradient, std::mt19937& random, const Filling& filling) {
  const double largest =
      gradient.dtype() == DType::kFloat16 ? std::min(filling.largest, 6e4) : filling.largest;
  std::uniform_real_distribution<double> exponent(std::log2(filling.smallest), std::log2(largest));
  for (int64_t i = 0; i < gradient.numel(); ++i) {
    const double magnitude = std::exp2(exponent(random));
    gradient.set(i, (random() & 1u) != 0 ? magnitude : -magnitude);
  }
}

List sample_list(std::mt19937& random, int max_tensors, const Filling& filling) {
  constexpr int64_t kChunk = torchamp::common::kChunkSize;
  // Small sizes more often than those that take a reference some time.
  constexpr int64_t kSizes[] = {
      0,    1,    2,    3,    4,    5,    7,          8,      9,          15,
      16,   17,   31,   33,   63,   64,   65,         100,    127,        128,
      129,  255,  256,  257,  500,  511,  513,        1000,   1023,       1025,
      2047, 2049, 4095, 4096, 4097, 8191, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk + 5};
  List list;
  const int64_t tensors = 1 + pick(random, max_tensors);
  for (int64_t i = 0; i < tensors; ++i) {
    const DType dtype = kAllTypes[pick(random, 4)];
    const int64_t numel = kSizes[pick(random, std::size(kSizes))];
    const auto per_pack = static_cast<int64_t>(16 / torchamp::common::size_of(dtype));
    list.emplace_back(dtype, numel, pick(random, 2) == 0 ? 0 : pick(random, per_pack));
    fill(list.back(), random, filling);
  }
  return list;
}

List sample_list_of_kind(std::mt19937& random, int kind, int max_tensors) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kPlanted[] = {std::numeric_limits<double>::quiet_NaN(),
                                 kInfinity,
                                 -kInfinity,
                                 3e38,
                                 65504.0,
                                 1.7e308,
                                 1e-45};
  List list = sample_list(random, max_tensors);
  if (kind > 0) {
    plant(list, random, kPlanted[kind - 1]);
  }
  return list;
}

void plant(List& list, std::mt19937& random, double value) {
  if (std::all_of(list.begin(), list.end(), [](const Gradient& g) { return g.numel() == 0; })) {
    return;
  }
  Gradient* gradient = nullptr;
  do {
    gradient = &list[static_cast<std::size_t>(pick(random, static_cast<int64_t>(list.size())))];
  } while (gradient->numel() == 0);
  const int64_t numel = gradient->numel();
  const int64_t places[] = {0, numel - 1, pick(random, numel)};
  gradient->set(places[pick(random, 3)], value);
}

}  // namespace reference
