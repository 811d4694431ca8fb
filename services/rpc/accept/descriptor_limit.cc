#include "services/rpc/accept/descriptor_limit.h"

#include <sys/resource.h>

namespace syncopate::rpc {

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace syncopate::rpc
