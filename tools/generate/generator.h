#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/trajectory.h"

namespace syncopate::generate {

struct GenerateOptions {
  std::string folder;        // a Hugging Face model directory
  std::string adapter = {};  // a directory of PEFT adapters for that model; "": none
  std::vector<int32_t> prompt_ids;
  int64_t max_new_tokens = 16;
  double temperature = 0;  // 0: greedy
  uint64_t seed = 0;
  int threads = 1;  // intra-op threads of libtorch
};

// The token ids of a text for the model in `folder`. With `chat` the text is a user's message, written by the chat
// template, if there is one, and followed by the beginning of the answer; else the text is encoded unchanged. Errors of
// Tokenizer and ChatFormat.
absl::StatusOr<std::vector<int32_t>> IdsOfText(const std::string& folder, const std::string& text, bool chat);
// The text of the tokens, without special tokens.
absl::StatusOr<std::string> TextOfIds(const std::string& folder, const std::vector<int32_t>& ids);

// Loads the model in float32 on the CPU, with one weight set, and answers one prompt, until max_new_tokens or a token
// that the model's files name as the end of a sequence (which is part of the answer). Blocks until then.
// INVALID_ARGUMENT (reason BAD_REQUEST) for an invalid prompt; errors of model::ReadHfConfig, WithContext,
// WeightFiles, ReadAdapterConfig and AdapterFiles.
absl::StatusOr<Trajectory> GenerateFromFolder(const GenerateOptions& options);

}  // namespace syncopate::generate
