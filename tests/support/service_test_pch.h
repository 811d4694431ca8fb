// The precompiled header of tests on the rungs that speak gRPC.
#pragma once

#include "services/services_pch.h"
#include "tests/support/test_pch.h"
