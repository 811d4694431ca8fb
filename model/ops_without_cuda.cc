#include "model/ops.h"

namespace syncopate::model {

const Ops& OpsFor(at::Device device) { return HostOps(); }

}  // namespace syncopate::model
