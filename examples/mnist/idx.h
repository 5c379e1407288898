// A strict reader of IDX files, the format of MNIST and of its drop-in relatives (as idx.py).

#pragma once

#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#ifdef TORCHAMP_EXAMPLES_ZLIB
#include <zlib.h>
#endif

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace examples {

/// A data file that is missing or not what it should be; the message has path and values.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Dataset {
  torch::Tensor images;  // uint8, (n, 28, 28)
  torch::Tensor labels;  // int64, (n,)
};

namespace detail {

#ifdef TORCHAMP_EXAMPLES_ZLIB
inline std::string read_gzip(const std::filesystem::path& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) {
    throw DataError(path.string() + ": cannot be read");
  }
  std::string content;
  std::array<char, 65536> buffer{};
  int count = 0;
  while ((count = gzread(file.get(), buffer.data(), buffer.size())) > 0) {
    content.append(buffer.data(), static_cast<size_t>(count));
  }
  int status = Z_OK;
  gzerror(file.get(), &status);
  const bool plain = gzdirect(file.get()) != 0;  // zlib passes other files through
  if (count < 0 || status != Z_OK || plain) {
    throw DataError(path.string() + ": damaged gzip file");
  }
  return content;
}
#else
inline std::string read_gzip(const std::filesystem::path& path) {
  throw DataError(path.string() + ": this program was built without zlib; gunzip the file first");
}
#endif

inline std::string read_bytes(const std::filesystem::path& path) {
  if (path.extension() == ".gz") {
    return read_gzip(path);
  }
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw DataError(path.string() + ": cannot be read");
  }
  return content;
}

inline uint32_t big_endian(const std::string& bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value = (value << 8U) | static_cast<uint8_t>(bytes[offset + i]);
  }
  return value;
}

inline std::string hex(uint32_t value) {
  std::array<char, 11> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

/// The product, or the largest number there is when it would not fit.
inline uint64_t product(const std::vector<int64_t>& shape) {
  uint64_t result = 1;
  for (const int64_t size : shape) {
    const auto factor = static_cast<uint64_t>(size);
    if (factor == 0) {
      return 0;
    }
    const uint64_t most = std::numeric_limits<uint64_t>::max();
    result = result > most / factor ? most : result * factor;
  }
  return result;
}

}  // namespace detail

/// Reads a file of unsigned bytes with that many dimensions, and of exactly the right size.
inline torch::Tensor read_idx(const std::filesystem::path& path, size_t dimensions) {
  const std::string content = detail::read_bytes(path);
  const size_t header_size = 4 + (4 * dimensions);
  const auto expected_magic = static_cast<uint32_t>(0x0800 + dimensions);  // 0x08: unsigned bytes
  if (content.size() >= 4) {
    const uint32_t magic = detail::big_endian(content, 0);
    if (magic != expected_magic) {
      throw DataError(c10::str(path.string(), ": bad magic ", detail::hex(magic), ", expected ",
                               detail::hex(expected_magic)));
    }
  }
  if (content.size() < header_size) {
    throw DataError(c10::str(path.string(), ": truncated: the header takes ", header_size,
                             " bytes, the file has ", content.size()));
  }

  std::vector<int64_t> shape(dimensions);
  for (size_t i = 0; i < dimensions; ++i) {
    shape[i] = detail::big_endian(content, 4 + (4 * i));
  }
  const uint64_t promised = detail::product(shape);
  const uint64_t present = content.size() - header_size;
  if (promised != present) {
    const std::string problem = present < promised ? "truncated" : "too long";
    throw DataError(c10::str(path.string(), ": ", problem, ": the header promises ", promised,
                             " bytes of data, the file has ", present));
  }
  torch::Tensor result = torch::empty(shape, torch::kByte);
  std::memcpy(result.data_ptr(), content.data() + header_size, present);
  return result;
}

inline std::filesystem::path find_file(const std::filesystem::path& folder,
                                       const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (std::filesystem::is_regular_file(folder / candidate)) {
      return folder / candidate;
    }
  }
  throw DataError(c10::str(folder.string(), ": neither ", name, " nor ", name,
                           ".gz is there (examples/mnist/get_data.py gets the data)"));
}

/// Reads the images and labels of one split, "train" or "t10k".
inline Dataset load_split(const std::filesystem::path& folder, const std::string& split) {
  const auto image_path = find_file(folder, split + "-images-idx3-ubyte");
  const auto label_path = find_file(folder, split + "-labels-idx1-ubyte");
  const torch::Tensor images = read_idx(image_path, 3);
  const torch::Tensor labels = read_idx(label_path, 1);

  if (images.size(1) != 28 || images.size(2) != 28) {
    throw DataError(c10::str(image_path.string(), ": images of ", images.size(1), "x",
                             images.size(2), ", expected 28x28"));
  }
  if (images.size(0) == 0) {
    throw DataError(image_path.string() + ": holds no images");
  }
  if (images.size(0) != labels.size(0)) {
    throw DataError(c10::str(folder.string(), ": ", images.size(0), " images in ",
                             image_path.filename().string(), ", but ", labels.size(0),
                             " labels in ", label_path.filename().string()));
  }
  const torch::Tensor bad = (labels > 9).nonzero();
  if (bad.size(0) > 0) {
    const auto index = bad[0].item<int64_t>();
    throw DataError(c10::str(label_path.string(), ": label ", labels[index].item<int64_t>(),
                             " at index ", index, ", expected 0 to 9"));
  }
  return {.images = images, .labels = labels.to(torch::kLong)};
}

}  // namespace examples
