#pragma once

/// Marks what the shared library offers; everything else in it is hidden.
#if defined(_WIN32)
#define TORCHAMP_API
#else
#define TORCHAMP_API __attribute__((visibility("default")))
#endif
