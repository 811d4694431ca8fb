#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/trajectory.h"

namespace syncopate::generate {

struct GenerateOptions {
  std::string folder;  // a Hugging Face model directory
  std::vector<int32_t> prompt_ids;
  int64_t max_new_tokens = 16;
  double temperature = 0;  // 0 is greedy
  uint64_t seed = 0;
  int threads = 1;  // intra-op threads of libtorch
};

// What a text is to the model of `folder`: with `chat` the message of a user, written down by the chat template and
// followed by the beginning of the answer, if there is a template; else the text as it stands. Errors of
// Tokenizer and ChatFormat.
absl::StatusOr<std::vector<int32_t>> IdsOfText(const std::string& folder, const std::string& text, bool chat);
// What tokens say, special ones left out.
absl::StatusOr<std::string> TextOfIds(const std::string& folder, const std::vector<int32_t>& ids);

// Loads the model in float32 on the CPU, with one weight set, and answers one prompt, until a token that the model's
// files name as the end of a sequence (which is part of the answer) or max_new_tokens. Blocks for all of it.
// INVALID_ARGUMENT (reason BAD_REQUEST) if the prompt cannot be; errors of model::ReadHfConfig, WithContext and
// WeightFiles.
absl::StatusOr<Trajectory> GenerateFromFolder(const GenerateOptions& options);

}  // namespace syncopate::generate
