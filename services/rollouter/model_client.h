#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/identity.h"
#include "base/manifest.h"
#include "base/trajectory.h"
#include "model/model_config.h"
#include "services/auth/transport_security.h"
#include "syncopate/v1/trainer.pb.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::rollouterd {

// The trainer's description of a run's model.
struct LearnedModel {
  std::string run_id;
  model::ModelConfig shape;
  DType dtype = DType::kFloat32;  // of the weights as they are sent
  int64_t bucket_bytes = 0;
  std::vector<int32_t> end_token_ids;
  std::map<std::string, std::string> files;  // contents by name: tokenizer.json, tokenizer_config.json, ...
  // The tokenizer of tokenizer.json; null if the model has none.
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer;
  // For a request with cards: the call, which stays open while this exists, for two minutes at most. It tells a
  // trainer that takes turns on one of them that this process is still there: free it when the stream of work is
  // open. Freeing it does not wait for the trainer. Null otherwise.
  std::shared_ptr<const void> presence = nullptr;
};

// Asks the trainer at `address` (TrainerService.GetModel) and checks the answer: digests and sizes of the files, that
// the manifest follows from the shape, and that the tokenizer can be read. `request` says who asks. Blocks until
// `deadline`. The call's errors; INVALID_ARGUMENT or DATA_LOSS (reason BAD_MODEL_ANSWER) for an impossible answer;
// those of ModelConfig and Tokenizer.
absl::StatusOr<LearnedModel> GetModel(const std::string& address,
                                      const std::shared_ptr<const auth::TransportSecurity>& security,
                                      absl::Time deadline, const v1::GetModelRequest& request = {});

// The error with which a rollouter ends that asked the trainer for its model and cannot go on because of `why`. The
// reasons MODEL_MISMATCH and DTYPE_MISMATCH, which end other daemons for good, become MODEL_CHANGED: a new trainer may
// have another model, and a restarted rollouter asks again. Other errors are returned unchanged.
absl::Status RenameMismatch(const absl::Status& why);

// Gets the model for a rollouter without a model directory. Joins the synchronizer without a manifest, which makes it a
// member that receives nothing; asks the trainer of the directory until it answers; leaves the synchronizer before
// returning, to join again with the model.
struct LearnModelOptions {
  std::string synchronizer_address;
  std::shared_ptr<const auth::TransportSecurity> security = nullptr;
  MemberId member;
  MemberSecret secret;
  std::set<std::string> cards = {};  // see WorkClient::Options
  std::string run_id = {};
  std::string metrics_address = {};
  std::string build = {};
  absl::Duration lost_after = absl::InfiniteDuration();
  bool exit_on_completion = false;  // a completed run ends the wait too
  // Called before each try with the time to wait (200 ms; a try itself may take up to a minute). True ends the wait
  // with CANCELLED (reason STOPPED).
  std::function<bool(absl::Duration wait)> stop_requested;
};
// Blocks. Refusals of the synchronizer, errors of GetModel, SYNCHRONIZER_LOST, STOPPED.
absl::StatusOr<LearnedModel> LearnModel(const LearnModelOptions& options);

}  // namespace syncopate::rollouterd
