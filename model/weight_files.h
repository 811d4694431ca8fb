#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/manifest.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace syncopate::model {

// The weights of a Hugging Face directory: model.safetensors, or the shards that model.safetensors.index.json names.
// Each tensor may be bf16, fp16 or fp32. The files are mapped, not read: tensors that are not accessed cost no memory.
// Immutable, thread-safe.
class WeightFiles {
 public:
  // Reads only the headers, and trusts nothing in them. Checks that every parameter of the base of `config` (which must
  // be valid) is there once, with the right shape and a dtype of weights, and that there are no other tensors except
  // redundant ones (an lm_head beside tied embeddings, rotary tables). NOT_FOUND (reason MISSING_WEIGHTS) naming the
  // file that is missing; INVALID_ARGUMENT naming file and tensor:
  //   BAD_SAFETENSORS   no safetensors file, or a truncated one
  //   LFS_POINTER       a Git LFS pointer instead of the file
  //   BAD_WEIGHTS       a tensor that is missing, superfluous or of another shape or dtype, or a wrong index
  static absl::StatusOr<std::shared_ptr<const WeightFiles>> Open(const std::string& folder, const ModelConfig& config);

  // Checks every number. DATA_LOSS (reason NON_FINITE) naming file and tensor if one is a NaN or an infinity.
  absl::Status CheckFinite() const;

  // The number of parameters; indices are in the order of ParameterSpecs().
  size_t size() const { return tensors_.size(); }
  // Reads one parameter as float32; values.size() is its number of elements.
  void Read(size_t index, absl::Span<float> values) const;
  // Reads all parameters into the arena of a manifest of the same model, in float32 or bf16 (rounded to nearest); gaps
  // and adapters are not written.
  void ReadAll(const Manifest& manifest, void* arena) const;

 private:
  struct Entry {
    StoredTensor tensor;
    const MappedFile* file;
  };
  WeightFiles() = default;

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<Entry> tensors_;
};

// The numbers of a stored tensor of weights (float32, bf16 or fp16) as float32; values.size() is their number.
void ReadNumbers(const StoredTensor& tensor, absl::Span<float> values);
// The first element of such a tensor that is a NaN or an infinity.
std::optional<int64_t> FindNonFiniteNumber(const StoredTensor& tensor);

// The names of the files in `folder` that WeightFiles opens, sorted; reads only the index, if there is one. Errors of
// WeightFiles::Open.
absl::StatusOr<std::vector<std::string>> FindWeightFiles(const std::string& folder);

}  // namespace syncopate::model
