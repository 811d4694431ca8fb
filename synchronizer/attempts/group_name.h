#pragma once

#include <string>
#include <vector>

#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Names the set of processes that take part in a sync, in their order: 16 hexadecimal digits, a hash over roles,
// places and incarnations. What a transport keeps from one attempt to the next (a communicator) it keeps by this name.
std::string GroupName(const std::vector<MemberId>& sources, const std::vector<MemberId>& receivers);

}  // namespace syncopate::synchronizer
