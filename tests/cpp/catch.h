#pragma once

// One name for both major versions of Catch2.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

// Version 2 cannot skip: it says why and passes.
#ifndef SKIP
#define SKIP(reason) \
  do {               \
    WARN(reason);    \
    return;          \
  } while (false)
#endif
