#include "ops/aten_override.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torchamp/ops.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace torchamp::detail {

namespace {

// The schemas are PyTorch's.
void unscale_with_inverse_(at::TensorList self, at::Tensor& found_inf,
                           const at::Tensor& inv_scale) {
  unscale_(self, found_inf, inv_scale, /*scale_is_inverse=*/true);
}

at::Tensor& update_scale_with_one_flag_(at::Tensor& self, at::Tensor& growth_tracker,
                                        const at::Tensor& found_inf, double growth_factor,
                                        double backoff_factor, int64_t growth_interval) {
  update_scale_(self, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval);
  return self;
}

/// PyTorch warns, once a process, when a kernel is overridden; here that is what was asked for.
class SilentHandler : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

struct Installation {
  std::mutex mutex;
  int64_t count = 0;
  std::vector<std::unique_ptr<torch::Library>> libraries;  // a registration lives as long as these
};

/// Never destroyed: at the end of the process the dispatcher may be gone before it.
Installation& installation() {
  static auto* const instance = new Installation;
  return *instance;
}

std::vector<std::unique_ptr<torch::Library>> override_kernels() {
  SilentHandler silent;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&silent);
  std::vector<std::unique_ptr<torch::Library>> libraries;
  for (const c10::DispatchKey key : native_kernel_keys()) {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__,
                                                    static_cast<uint32_t>(__LINE__));
    library->impl("_amp_foreach_non_finite_check_and_unscale_", &unscale_with_inverse_);
    library->impl("_amp_update_scale_", &update_scale_with_one_flag_);
    libraries.push_back(std::move(library));
  }
  return libraries;
}

}  // namespace

std::vector<c10::DispatchKey> native_kernel_keys() {
  std::vector<c10::DispatchKey> keys;
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (dispatcher.findSchemaOrThrow("torchamp::unscale_", "").hasKernelForDispatchKey(key) &&
        dispatcher.findSchemaOrThrow("torchamp::update_scale_", "").hasKernelForDispatchKey(key)) {
      keys.push_back(key);
    }
  }
  return keys;
}

void install_aten_kernels() {
  Installation& installed = installation();
  const std::scoped_lock lock(installed.mutex);
  if (installed.count == 0) {
    installed.libraries = override_kernels();
  }
  ++installed.count;
}

void uninstall_aten_kernels() {
  Installation& installed = installation();
  const std::scoped_lock lock(installed.mutex);
  TORCH_CHECK(installed.count > 0, "torchamp: uninstall_kernels() without install_kernels()");
  if (--installed.count == 0) {
    installed.libraries.clear();
  }
}

}  // namespace torchamp::detail
