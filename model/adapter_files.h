#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/manifest.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "model/model_config.h"
#include "model/model_export.h"
#include "model/safetensors.h"
#include "model/weight_files.h"

// Directories of LoRA adapters as PEFT (the Python package) writes and reads them: adapter_config.json and
// adapter_model.safetensors.
namespace syncopate::model {

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";

// Compiles a regular expression into a function that says whether a whole text matches it.
using CompilePattern =
    std::function<absl::StatusOr<std::function<bool(absl::string_view)>>(const std::string& pattern)>;

// The adapters that `folder` describes, for the base model `base`. `compile`: for target_modules that are a pattern;
// null: such a pattern is refused. NOT_FOUND (reason NO_ADAPTER) if there is no adapter_config.json; INVALID_ARGUMENT
// (reason BAD_ADAPTER) naming the key: a feature that is not supported (DoRA, dropout, biases, patterns of ranks, ...),
// targets that match nothing, a module that takes no adapter, or only some of the modules of one name.
absl::StatusOr<LoraConfig> ReadAdapterConfig(const std::string& folder, const ModelConfig& base,
                                             const CompilePattern& compile = nullptr);

// What adapter_config.json says without a model at hand. Errors as ReadAdapterConfig.
struct AdapterDescription {
  int64_t rank = 0;
  std::string base = {};  // base_model_name_or_path; "" if it names none
  std::string text = {};  // the file
};
absl::StatusOr<AdapterDescription> DescribeAdapter(const std::string& folder);

// The projections that `targets` names: "all-linear", or names of projections with commas between. INVALID_ARGUMENT
// (reason BAD_ADAPTER) naming one that does not exist.
absl::StatusOr<std::vector<std::string>> ParseProjections(const std::string& targets);

// The text of adapter_config.json for `lora`. `base_name`: base_model_name_or_path; "": none.
std::string FormatAdapterConfig(const LoraConfig& lora, const std::string& base_name);

// The metadata of adapter_model.safetensors, in which a base digest is named; 0: none.
std::map<std::string, std::string> AdapterMetadata(uint64_t base_digest);
// The base digest that such metadata names.
std::optional<uint64_t> FindBaseDigest(const std::map<std::string, std::string>& metadata);

// The digest that names a base: of the numbers of its `count` tensors in float32, in the manifest's order. `numbers`
// gives those of one tensor, valid until the next call. Never 0.
uint64_t DigestBase(size_t count, const std::function<absl::string_view(size_t index)>& numbers);
// CombineBaseDigests returns the same digest, made of DigestBytes of each tensor's numbers.
uint64_t CombineBaseDigests(const std::vector<uint64_t>& tensors);
// The digest of a base in files of weights.
uint64_t DigestBase(const WeightFiles& files, const ModelConfig& config);

// The weights of a directory of adapters. The file is mapped, not read. Immutable, thread-safe.
class AdapterFiles {
 public:
  // Checks that adapter_model.safetensors has each adapter tensor of `config`, with the right shape and a dtype of
  // weights, and no other tensors. NOT_FOUND (reason MISSING_WEIGHTS); INVALID_ARGUMENT naming file and tensor: reason
  // BAD_SAFETENSORS, LFS_POINTER or BAD_ADAPTER; DATA_LOSS (reason NON_FINITE) if a number is not finite.
  static absl::StatusOr<std::shared_ptr<const AdapterFiles>> Open(const std::string& folder, const ModelConfig& config);

  size_t size() const { return tensors_.size(); }
  // Reads one tensor as float32; `index` counts the adapter tensors of ParameterSpecs() from 0.
  void Read(size_t index, absl::Span<float> values) const;
  // The digest of the base for which these adapters were trained, if the file names it.
  std::optional<uint64_t> base_digest() const { return base_digest_; }

 private:
  AdapterFiles() = default;

  std::unique_ptr<MappedFile> file_;
  std::vector<StoredTensor> tensors_;
  std::optional<uint64_t> base_digest_;
};

// Writes a directory of adapters that PEFT can load. `config`: the text of adapter_config.json. `tensors` write the
// float32 adapter tensors of a model, in any order and in pieces of whole numbers. `options` say where; the file is in
// one piece and in float32 whatever they say. `folder` appears whole or not at all. ALREADY_EXISTS (reason
// FOLDER_TAKEN) if it is not empty; DATA_LOSS (reason NON_FINITE) naming a tensor; errors of the disk. Returns the
// bytes of the weights.
absl::StatusOr<int64_t> ExportAdapter(const std::vector<TensorToWrite>& tensors, const std::string& config,
                                      uint64_t base_digest, const std::string& folder, ExportOptions options = {});

// The parameters of the model that results when adapters are added to their base: W + scale * B A, computed in float32
// while they are written. `read` gives the adapter tensors of `config` in float32, by name (AdapterName). `base` must
// outlive the result.
std::vector<TensorToWrite> MergeAdapters(const WeightFiles& base, const ModelConfig& config,
                                         const std::function<std::vector<float>(const std::string& name)>& read);

}  // namespace syncopate::model
