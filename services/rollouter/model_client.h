#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/identity.h"
#include "base/manifest.h"
#include "base/trajectory.h"
#include "model/model_config.h"
#include "services/auth/transport_security.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::rollouterd {

// What the trainer has said of the model of a run.
struct LearnedModel {
  std::string run_id;
  model::ModelConfig shape;
  DType dtype = DType::kFloat32;  // of the weights as they travel
  int64_t bucket_bytes = 0;
  std::vector<int32_t> end_token_ids;
  std::map<std::string, std::string> files;  // contents by name: tokenizer.json, tokenizer_config.json, ...
  // Of tokenizer.json; null if the model has none.
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer;
};

// Asks the trainer at `address` (TrainerService.GetModel), and checks what it says: digests, sizes, that the manifest
// follows from the shape, and that the tokenizer is one. Blocks until `deadline`. The call's errors; INVALID_ARGUMENT
// or DATA_LOSS (reason BAD_MODEL_ANSWER) for an answer that cannot be; those of ModelConfig and Tokenizer.
absl::StatusOr<LearnedModel> GetModel(const std::string& address,
                                      const std::shared_ptr<const auth::TransportSecurity>& security,
                                      absl::Time deadline);

// Why a rollouter ends that has learned its model, from `why` it cannot go on. A model that is not the run's (reasons
// MODEL_MISMATCH and DTYPE_MISMATCH, which end other daemons for good) is reason MODEL_CHANGED: another trainer may have
// come with another model since, and a new start asks again. Other errors as they are.
absl::Status RenameMismatch(const absl::Status& why);

// A rollouter that has no model directory: joins the synchronizer without a manifest, which makes it a member that
// receives nothing, and once it is told where the trainer is, asks there, again and again until it is answered. Leaves
// the synchronizer before it returns, to join again with the model.
struct LearnModelOptions {
  std::string synchronizer_address;
  std::shared_ptr<const auth::TransportSecurity> security = nullptr;
  MemberId member;
  MemberSecret secret;
  std::string run_id = {};
  std::string metrics_address = {};
  std::string build = {};
  absl::Duration lost_after = absl::InfiniteDuration();
  bool exit_on_completion = false;  // a run that is complete ends it as well
  // Asked again and again, at least each 200 ms: true ends it, with CANCELLED (reason STOPPED).
  std::function<bool(absl::Duration wait)> stop_requested;
};
// Blocks. Refusals of the synchronizer, those of GetModel, SYNCHRONIZER_LOST, STOPPED.
absl::StatusOr<LearnedModel> LearnModel(const LearnModelOptions& options);

}  // namespace syncopate::rollouterd
