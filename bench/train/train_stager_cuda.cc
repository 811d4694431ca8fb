#include <utility>

#include "bench/train/train_stager.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/staging/host_stager.h"

namespace syncopate::bench {

absl::StatusOr<std::unique_ptr<trainer::WeightStager>> MakeTrainStager(trainer::PolicyTrainer* policy, Manifest wire,
                                                                       int device, bool on_gpu) {
  if (!on_gpu) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto stager, trainer::HostStager::Create(policy, std::move(wire), /*slots=*/1));
    return std::unique_ptr<trainer::WeightStager>(std::move(stager));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto stager, trainer::CudaStager::Create(policy, std::move(wire), device, /*slots=*/1));
  return std::unique_ptr<trainer::WeightStager>(std::move(stager));
}

}  // namespace syncopate::bench
