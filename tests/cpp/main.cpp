// Catch2 version 2 makes its main function from a header, version 3 brings a library for it.
#define CATCH_CONFIG_MAIN
#include "catch.h"
