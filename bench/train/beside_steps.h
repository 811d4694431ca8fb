#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "bench/train/train_batches.h"
#include "model/model_config.h"
#include "trainer/step/policy_trainer.h"

// What goes on beside steps: the stagings of versions, and exports.
namespace syncopate::bench {

struct BesideSteps {
  model::ModelConfig shape;  // of the policy
  int device = 0;            // the number of the GPU
  bool on_gpu = false;
  int steps = 12;
};

// A step here is the digest of the weights before it, which a trainer makes for each step's line, and the step.
//
// Steps without and with a staging that is launched right before them, alternately. Milliseconds, medians: "step_ms",
// "staged_step_ms" (from the launch to the end of the step) and "loss_ratio" of the two; "wait_ms", how long the
// step's thread waits: "launch_ms" before the step begins and "update_wait_ms" before its update; "digests_ms", from
// the launch to the version's digests; "alone_ms", a staging that nothing runs beside; "staged_gib". INTERNAL (reason
// DIGEST_CHANGED) if a staging beside a step gives other digests than one alone of the same weights.
absl::StatusOr<nlohmann::json> MeasureStaging(trainer::PolicyTrainer& policy, const TrainBatch& batch,
                                              const BesideSteps& asked);

// Steps alone, and steps while the weights are exported to a folder of the machine's temporary files, as a trainer of
// one rank does it. Milliseconds, medians over exports: "step_ms"; "held_ms", how long the step's thread waits before
// the first step; "copied_ms", from then until the copy is whole; "written_ms", until the export is durable;
// "first_step_ms", the step that begins with the copy, "beside_step_ms", those after it, with "first_loss_ratio" and
// "loss_ratio" to "step_ms"; "exported_gib". INTERNAL (reason DIGEST_CHANGED) if what is copied is not what the step
// before left.
absl::StatusOr<nlohmann::json> MeasureExport(trainer::PolicyTrainer& policy, const TrainBatch& batch,
                                             const BesideSteps& asked);

}  // namespace syncopate::bench
