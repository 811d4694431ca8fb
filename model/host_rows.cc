#include "model/host_rows.h"

namespace syncopate::model {

const HostRows& FastestHostRows() {
  static const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return wide ? Avx2HostRows() : PlainHostRows();
}

}  // namespace syncopate::model
