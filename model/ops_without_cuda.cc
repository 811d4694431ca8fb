#include "model/ops.h"

namespace syncopate::model {

const Ops& OpsFor(at::Device device) { return AtenOps(); }

}  // namespace syncopate::model
