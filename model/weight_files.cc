#include "model/weight_files.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file_system.h"
#include "base/finite.h"
#include "base/git_lfs.h"
#include "base/half.h"
#include "base/reasons.h"
#include "base/strict_json.h"
#include "model/decoder_spec.h"
#include "model/model_folder.h"

namespace syncopate::model {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kIndexLimits = {.max_bytes = 64 << 20, .max_depth = 8};

absl::Status BadWeights(const std::string& path, const std::string& tensor, const std::string& what) {
  constexpr size_t kShown = 128;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_WEIGHTS",
               absl::StrCat(path, ": tensor ", absl::CHexEscape(tensor.substr(0, kShown)), " ", what));
}

absl::Status MissingWeights(const std::string& message) {
  return Error(absl::StatusCode::kNotFound, "MISSING_WEIGHTS", message);
}

// The file of each tensor, from an index, or from the header of the only file.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ParseIndex(const std::string& path, const std::string& text) {
  auto bad = [&path](absl::string_view what) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_WEIGHTS", absl::StrCat(path, ": ", what));
  };
  absl::StatusOr<Json> json = ParseStrictJson(text, kIndexLimits);
  if (!json.ok()) return bad(json.status().message());
  if (!json->contains("weight_map") || !(*json)["weight_map"].is_object()) return bad("weight_map is no object");
  WeightMap map;
  for (const auto& [name, file] : (*json)["weight_map"].items()) {
    // File names become paths: none may lead out of the folder.
    if (!file.is_string() || !CheckFileName(file.get_ref<const std::string&>()).ok()) {
      return BadWeights(path, name, "is in no file of this folder");
    }
    map[name] = file.get<std::string>();
  }
  return map;
}

// One file with weights.
struct Shard {
  std::string name;
  std::unique_ptr<MappedFile> file;
  std::vector<StoredTensor> tensors;
};

// `tensor`: a tensor that should be in the file, for messages.
absl::StatusOr<Shard> OpenShard(const std::string& folder, const std::string& name, const std::string& tensor) {
  Shard shard;
  shard.name = name;
  const std::string path = JoinPath(folder, name);
  absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return MissingWeights(absl::StrCat(path, " is missing", tensor.empty() ? "" : ", which contains tensor ", tensor));
  }
  SYNCOPATE_RETURN_IF_ERROR(file.status());
  shard.file = *std::move(file);
  SYNCOPATE_RETURN_IF_ERROR(RefuseLfsPointer(shard.file->bytes(), path));
  absl::StatusOr<SafetensorsFile> parsed = SafetensorsFile::Parse(shard.file->bytes());
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  shard.tensors = parsed->tensors();
  return shard;
}

absl::StatusOr<std::vector<Shard>> OpenSharded(const std::string& folder, const std::string& index_path,
                                               const WeightMap& map) {
  std::map<std::string, std::string> a_tensor_of;  // by file
  for (const auto& [tensor, file] : map) a_tensor_of.emplace(file, tensor);
  std::vector<Shard> shards;
  size_t found = 0;
  for (const auto& [name, tensor] : a_tensor_of) {
    SYNCOPATE_ASSIGN_OR_RETURN(Shard shard, OpenShard(folder, name, tensor));
    std::set<std::string> there;
    for (const StoredTensor& stored : shard.tensors) {
      auto mapped = map.find(stored.name);
      // An interrupted download, or files of two models in one folder: an error here is better than a model that
      // answers nonsense.
      if (mapped == map.end() || mapped->second != name) {
        return BadWeights(index_path, stored.name,
                          absl::StrCat("is in ", name, ", but the index says ",
                                       mapped == map.end() ? "nothing of it" : "it is in " + mapped->second));
      }
      there.insert(stored.name);
    }
    found += there.size();
    for (const auto& [promised, file] : map) {
      if (file == name && there.count(promised) == 0) {
        return BadWeights(index_path, promised, absl::StrCat("is not in ", name, ", where the index says it is"));
      }
    }
    shards.push_back(std::move(shard));
  }
  SYNCOPATE_CHECK(found == map.size());
  return shards;
}

absl::StatusOr<WeightMap> ReadIndex(const std::string& folder) {
  const std::string index_path = JoinPath(folder, kWeightsIndexFile);
  absl::StatusOr<std::string> index = ReadModelFile(index_path, kIndexLimits.max_bytes);
  if (absl::IsNotFound(index.status())) {
    return MissingWeights(absl::StrCat(folder, " has neither ", kWeightsFile, " nor ", kWeightsIndexFile,
                                       "; weights in another format must be converted to safetensors"));
  }
  SYNCOPATE_RETURN_IF_ERROR(index.status());
  return ParseIndex(index_path, *index);
}

// Looks for the single file first, as transformers does.
absl::StatusOr<std::vector<Shard>> OpenShards(const std::string& folder) {
  absl::StatusOr<Shard> single = OpenShard(folder, kWeightsFile, "");
  if (single.ok()) {
    std::vector<Shard> shards;
    shards.push_back(*std::move(single));
    return shards;
  }
  if (!absl::IsNotFound(single.status())) return single.status();
  SYNCOPATE_ASSIGN_OR_RETURN(const WeightMap map, ReadIndex(folder));
  return OpenSharded(folder, JoinPath(folder, kWeightsIndexFile), map);
}

// Whether a tensor of a file is redundant: it is no parameter of the model and can be derived.
bool IsNeedless(const std::string& name, const ModelConfig& config) {
  // Tied embeddings are sometimes stored twice, and old checkpoints keep the frequencies of rotary embeddings.
  return (config.tie_word_embeddings && name == "lm_head.weight") || absl::EndsWith(name, "rotary_emb.inv_freq");
}

// Splits the experts of a layer, which newer files store as two tensors, `experts.gate_up_proj` [N, 2 F, D] and
// `experts.down_proj` [N, D, F], into the tensors of the published names. Any other tensor is returned unchanged.
std::vector<StoredTensor> SplitExperts(const StoredTensor& stored) {
  const bool gate_up = absl::EndsWith(stored.name, ".experts.gate_up_proj");
  if (stored.shape.size() != 3 || !(gate_up || absl::EndsWith(stored.name, ".experts.down_proj"))) return {stored};
  const int64_t experts = stored.shape[0], parts = gate_up ? 2 : 1;
  if (experts <= 0 || stored.shape[1] % parts != 0) return {stored};
  const std::string prefix = stored.name.substr(0, stored.name.rfind('.') + 1);
  const size_t bytes = stored.data.size() / static_cast<size_t>(experts * parts);
  std::vector<StoredTensor> split;
  for (int64_t i = 0; i < experts * parts; ++i) {
    const char* const name = !gate_up ? "down_proj" : i % 2 == 0 ? "gate_proj" : "up_proj";
    split.push_back({absl::StrCat(prefix, i / parts, ".", name, ".weight"),
                     stored.dtype,
                     {stored.shape[1] / parts, stored.shape[2]},
                     stored.data.substr(static_cast<size_t>(i) * bytes, bytes)});
  }
  return split;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::Status CheckTensor(const std::string& path, const StoredTensor& stored, const TensorSpec& wanted) {
  const bool is_weight = stored.dtype == StoredDType::kFloat32 || stored.dtype == StoredDType::kBFloat16 ||
                         stored.dtype == StoredDType::kFloat16;
  if (!is_weight) {
    return BadWeights(path, stored.name,
                      absl::StrCat("is ", StoredDTypeName(stored.dtype), "; weights are BF16, F16 or F32"));
  }
  if (stored.shape == wanted.shape) return absl::OkStatus();
  return BadWeights(path, stored.name,
                    absl::StrCat("has the shape ", ShapeText(stored.shape), ", and by ", kHfConfigFile,
                                 " it must have ", ShapeText(wanted.shape)));
}

template <typename Widen>
void WidenAll(const char* bytes, absl::Span<float> values, Widen widen) {
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, 2);
    values[i] = widen(bits);
  }
}

}  // namespace

std::optional<int64_t> FindNonFiniteNumber(const StoredTensor& tensor) {
  const int64_t count = static_cast<int64_t>(tensor.data.size()) / StoredDTypeBytes(tensor.dtype);
  if (tensor.dtype == StoredDType::kFloat32) return FindNonFinite(tensor.data.data(), count, kFloat32Exponent);
  return FindNonFinite(tensor.data.data(), count,
                       tensor.dtype == StoredDType::kBFloat16 ? kBFloat16Exponent : kFloat16Exponent);
}

void ReadNumbers(const StoredTensor& tensor, absl::Span<float> values) {
  SYNCOPATE_CHECK(values.size() * static_cast<size_t>(StoredDTypeBytes(tensor.dtype)) == tensor.data.size());
  if (tensor.dtype == StoredDType::kFloat32) {
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  } else if (tensor.dtype == StoredDType::kBFloat16) {
    WidenAll(tensor.data.data(), values, WidenBFloat16);
  } else {
    WidenAll(tensor.data.data(), values, WidenFloat16);
  }
}

absl::StatusOr<std::shared_ptr<const WeightFiles>> WeightFiles::Open(const std::string& folder,
                                                                     const ModelConfig& config) {
  SYNCOPATE_RETURN_IF_ERROR(config.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Shard> shards, OpenShards(folder));
  std::map<std::string, TensorSpec> wanted;
  const std::vector<TensorSpec> specs = ParameterSpecs(config.Base(), DType::kFloat32);
  for (const TensorSpec& spec : specs) wanted[spec.name] = spec;
  std::map<std::string, Entry> found;
  std::shared_ptr<WeightFiles> files(new WeightFiles());
  for (Shard& shard : shards) {
    for (const StoredTensor& whole : shard.tensors) {
      for (const StoredTensor& stored : SplitExperts(whole)) {
        auto spec = wanted.find(stored.name);
        // An unknown tensor means that the configuration describes another model.
        if (spec == wanted.end()) {
          if (IsNeedless(stored.name, config)) continue;
          return BadWeights(shard.file->path(), stored.name,
                            absl::StrCat("has no place in the model that ", kHfConfigFile, " describes"));
        }
        SYNCOPATE_RETURN_IF_ERROR(CheckTensor(shard.file->path(), stored, spec->second));
        if (!found.emplace(stored.name, Entry{stored, shard.file.get()}).second) {
          return BadWeights(shard.file->path(), stored.name, "is there twice, by itself and within one of all experts");
        }
      }
    }
    files->files_.push_back(std::move(shard.file));
  }
  for (const TensorSpec& spec : specs) {
    auto entry = found.find(spec.name);
    if (entry == found.end()) {
      const bool sharded = files->files_.size() != 1 || !absl::EndsWith(files->files_[0]->path(), kWeightsFile);
      return BadWeights(JoinPath(folder, sharded ? kWeightsIndexFile : kWeightsFile), spec.name,
                        absl::StrCat("is missing, and by ", kHfConfigFile, " the model has it"));
    }
    files->tensors_.push_back(entry->second);
  }
  return std::shared_ptr<const WeightFiles>(std::move(files));
}

absl::StatusOr<std::vector<std::string>> FindWeightFiles(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(JoinPath(folder, kWeightsFile), ignored)) return std::vector<std::string>{kWeightsFile};
  SYNCOPATE_ASSIGN_OR_RETURN(const WeightMap map, ReadIndex(folder));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  return std::vector<std::string>(names.begin(), names.end());
}

absl::Status WeightFiles::CheckFinite() const {
  for (const Entry& entry : tensors_) {
    const std::optional<int64_t> bad = FindNonFiniteNumber(entry.tensor);
    if (!bad.has_value()) continue;
    return Error(
        absl::StatusCode::kDataLoss, reason::kNonFinite,
        absl::StrFormat("%s: element %d of tensor %s is not finite", entry.file->path(), *bad, entry.tensor.name));
  }
  return absl::OkStatus();
}

void WeightFiles::Read(size_t index, absl::Span<float> values) const { ReadNumbers(tensors_[index].tensor, values); }

void WeightFiles::ReadAll(const Manifest& manifest, void* arena) const {
  SYNCOPATE_CHECK(CountBaseTensors(manifest) == tensors_.size());
  std::vector<float> wide;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    char* to = static_cast<char*>(arena) + manifest.ranges()[i].begin;
    const size_t count = static_cast<size_t>(spec.NumElements());
    if (spec.dtype == DType::kFloat32) {
      Read(i, absl::MakeSpan(reinterpret_cast<float*>(to), count));
      continue;
    }
    wide.resize(count);
    Read(i, absl::MakeSpan(wide));
    auto* rounded = reinterpret_cast<uint16_t*>(to);
    for (size_t element = 0; element < count; ++element) rounded[element] = RoundToBFloat16(wide[element]);
  }
}

}  // namespace syncopate::model
