#pragma once

#include <torchamp/autocast.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/ops.h>
