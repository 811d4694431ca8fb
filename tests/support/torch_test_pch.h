// The precompiled header of tests that use libtorch.
#pragma once

#include "model/torch_pch.h"
#include "tests/support/test_pch.h"
