#include "ops/cpu/parallel.h"

#include <pthread.h>

namespace torchamp::cpu {

namespace {

std::atomic<bool> forked{false};

// When the library is loaded: in the child it would be too late.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

}  // namespace

bool is_forked_child() { return forked.load(std::memory_order_relaxed); }

}  // namespace torchamp::cpu
