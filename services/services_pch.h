// The precompiled header of services/: gRPC, protobuf and JSON on top of the core's. Units include what they use all
// the same.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <nlohmann/json.hpp>

#include "base/core_pch.h"
