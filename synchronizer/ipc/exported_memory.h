#pragma once

#include "synchronizer/lent_memory.h"

// The names by which the transport "ipc" and its users know memory that is lent. Short, as targets of weights lend and
// map memory too, and must not include this folder.
namespace syncopate::synchronizer::ipc {

using synchronizer::LentMemory;
using synchronizer::MemoryInfo;
using synchronizer::SharedMemory;

}  // namespace syncopate::synchronizer::ipc
