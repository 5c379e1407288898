#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchamp::bench {

using Shape = std::vector<int64_t>;

/// A list of gradients: the shapes of a model's parameters, or a synthetic extreme.
struct List {
  std::string name;
  std::vector<Shape> shapes;
};

inline std::vector<Shape> resnet50_shapes() {
  std::vector<Shape> shapes{{64, 3, 7, 7}, {64}, {64}};
  int64_t in = 64;
  const int64_t stages[][2] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [planes, blocks] : stages) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t out = 4 * planes;
      for (const Shape& convolution :
           {Shape{planes, in, 1, 1}, Shape{planes, planes, 3, 3}, Shape{out, planes, 1, 1}}) {
        shapes.insert(shapes.end(), {convolution, {convolution[0]}, {convolution[0]}});
      }
      if (block == 0) {
        shapes.insert(shapes.end(), {{out, in, 1, 1}, {out}, {out}});
      }
      in = out;
    }
  }
  shapes.insert(shapes.end(), {{1000, 2048}, {1000}});
  return shapes;
}

inline std::vector<Shape> gpt2_shapes() {
  const int64_t width = 768;
  std::vector<Shape> shapes{{50257, width}, {1024, width}};
  for (int block = 0; block < 12; ++block) {
    shapes.insert(shapes.end(), {{width}, {width}, {width, 3 * width}, {3 * width}});
    shapes.insert(shapes.end(), {{width, width}, {width}, {width}, {width}});
    shapes.insert(shapes.end(), {{width, 4 * width}, {4 * width}, {4 * width, width}, {width}});
  }
  shapes.insert(shapes.end(), {{width}, {width}});
  return shapes;
}

inline std::vector<List> lists() {
  return {{"1x100M", {{100'000'000}}},
          {"resnet50", resnet50_shapes()},
          {"gpt2", gpt2_shapes()},
          {"1000x1000", std::vector<Shape>(1000, {1000})},
          {"10000x64", std::vector<Shape>(10'000, {64})}};
}

}  // namespace torchamp::bench
