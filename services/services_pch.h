// The precompiled header of services/: gRPC, protobuf and JSON besides the core's headers. Every source file still
// includes what it uses.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <nlohmann/json.hpp>

#include "base/core_pch.h"
