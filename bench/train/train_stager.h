#pragma once

#include <memory>

#include "base/manifest.h"
#include "base/status.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::bench {

// What a trainer stages with on the device of `policy`: in host memory on the CPU, and with train_stager_cuda.cc in GPU
// memory on GPU `device`. One slot, for receivers of everything. The linked file decides which one a binary has.
absl::StatusOr<std::unique_ptr<trainer::WeightStager>> MakeTrainStager(trainer::PolicyTrainer* policy, Manifest wire,
                                                                       int device, bool on_gpu);

}  // namespace syncopate::bench
