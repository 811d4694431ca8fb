#include "model/model_export.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/finite.h"
#include "base/half.h"
#include "base/reasons.h"
#include "base/strict_json.h"
#include "model/hf_config.h"
#include "model/model_folder.h"

namespace syncopate::model {
namespace {

constexpr size_t kChunkElements = 1 << 20;  // converted at a time

absl::Status CheckFolderIsFree(FileSystem* files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files->List(folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(names.status());
  if (names->empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "FOLDER_TAKEN",
               absl::StrCat(folder, " is not empty; name a folder that is not there yet"));
}

// The tensors in the order of `specs`.
absl::StatusOr<std::vector<TensorToWrite>> Arrange(const std::vector<TensorToWrite>& tensors,
                                                   const std::vector<TensorSpec>& specs) {
  std::map<std::string, const TensorToWrite*> by_name;
  for (const TensorToWrite& tensor : tensors) by_name[tensor.name] = &tensor;
  std::vector<TensorToWrite> arranged;
  for (const TensorSpec& spec : specs) {
    auto found = by_name.find(spec.name);
    const bool same =
        found != by_name.end() && found->second->shape == spec.shape && found->second->dtype == StoredDType::kFloat32;
    if (!same || by_name.size() != specs.size()) {
      return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch,
                   absl::StrCat("the weights are not of the model that ", kHfConfigFile, " describes: ",
                                same ? absl::StrCat(by_name.size(), " tensors instead of ", specs.size())
                                     : absl::StrCat("see tensor ", spec.name)));
    }
    arranged.push_back(*found->second);
  }
  return arranged;
}

// Passes pieces of one float32 tensor on in the dtype of the file; an error if a number is not finite in it.
class PieceWriter {
 public:
  PieceWriter(std::string tensor, DType dtype, const ByteSink& sink)
      : tensor_(std::move(tensor)), dtype_(dtype), sink_(sink) {}

  absl::Status Write(absl::string_view piece) {
    for (size_t begin = 0; begin < piece.size(); begin += kChunkElements * sizeof(float)) {
      const absl::string_view chunk = piece.substr(begin, kChunkElements * sizeof(float));
      SYNCOPATE_RETURN_IF_ERROR(dtype_ == DType::kBFloat16 ? WriteRounded(chunk) : WriteWhole(chunk));
      written_ += static_cast<int64_t>(chunk.size() / sizeof(float));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteRounded(absl::string_view chunk) {
    rounded_.resize(chunk.size() / sizeof(float));
    for (size_t i = 0; i < rounded_.size(); ++i) {
      float value;
      std::memcpy(&value, chunk.data() + i * sizeof(float), sizeof(float));
      rounded_[i] = RoundToBFloat16(value);
    }
    const absl::string_view bytes(reinterpret_cast<const char*>(rounded_.data()), 2 * rounded_.size());
    // Rounding may have turned a very large number into an infinity.
    SYNCOPATE_RETURN_IF_ERROR(
        Check(FindNonFinite(bytes.data(), static_cast<int64_t>(rounded_.size()), kBFloat16Exponent), " in bfloat16"));
    return sink_(bytes);
  }

  absl::Status WriteWhole(absl::string_view chunk) {
    const auto count = static_cast<int64_t>(chunk.size() / sizeof(float));
    SYNCOPATE_RETURN_IF_ERROR(Check(FindNonFinite(chunk.data(), count, kFloat32Exponent), ""));
    return sink_(chunk);
  }

  absl::Status Check(std::optional<int64_t> bad, absl::string_view in) const {
    if (!bad.has_value()) return absl::OkStatus();
    return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
                 absl::StrFormat("element %d of %s is not finite%s", written_ + *bad, tensor_, in));
  }

  const std::string tensor_;
  const DType dtype_;
  const ByteSink& sink_;
  std::vector<uint16_t> rounded_;
  int64_t written_ = 0;
};

TensorToWrite InDType(const TensorToWrite& tensor, DType dtype) {
  return {tensor.name, ToStoredDType(dtype), tensor.shape, [tensor, dtype](const ByteSink& sink) {
            PieceWriter writer(tensor.name, dtype, sink);
            return tensor.write([&writer](absl::string_view piece) { return writer.Write(piece); });
          }};
}

int64_t BytesInFile(const TensorToWrite& tensor, DType dtype) {
  return TensorSpec{tensor.name, dtype, tensor.shape}.NumElements() * DTypeBytes(dtype);
}

// Divides the tensors in order into files, as many in each as fit.
std::vector<std::vector<TensorToWrite>> CutIntoShards(const std::vector<TensorToWrite>& tensors,
                                                      const ExportOptions& options) {
  std::vector<std::vector<TensorToWrite>> shards;
  int64_t room = -1;
  for (const TensorToWrite& tensor : tensors) {
    const int64_t bytes = BytesInFile(tensor, options.dtype);
    // A tensor is never cut: one that is larger than the limit gets its own file.
    if (shards.empty() || bytes > room) {
      shards.emplace_back();
      room = options.max_shard_bytes;
    }
    shards.back().push_back(tensor);
    room -= bytes;
  }
  return shards;
}

std::string ShardName(size_t index, size_t count) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

absl::StatusOr<ExportedModel> WriteWeights(const std::string& folder, const std::vector<TensorToWrite>& tensors,
                                           const ExportOptions& options) {
  const std::vector<std::vector<TensorToWrite>> shards = CutIntoShards(tensors, options);
  ExportedModel written{.files = static_cast<int64_t>(shards.size())};
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? kWeightsFile : ShardName(i, shards.size());
    SYNCOPATE_RETURN_IF_ERROR(WriteWeightFile(JoinPath(folder, name), shards[i], options, {{"format", "pt"}}));
    for (const TensorToWrite& tensor : shards[i]) {
      map[tensor.name] = name;
      written.bytes += BytesInFile(tensor, options.dtype);
    }
  }
  if (shards.size() == 1) return written;
  const nlohmann::json index = {{"metadata", {{"total_size", written.bytes}}}, {"weight_map", map}};
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text, DumpJson(index, 2));
  SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(options.files, JoinPath(folder, kWeightsIndexFile), text + "\n"));
  return written;
}

// Sets the dtype in config.json to that of the files, which may differ from the dtype of the model that the run began
// with. Uses the key that is there, as transformers reads both.
absl::Status WriteDType(FileSystem* files, const std::string& folder, DType dtype) {
  const std::string path = JoinPath(folder, kHfConfigFile);
  constexpr JsonLimits kLimits = {.max_bytes = 8 << 20, .max_depth = 64};
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path, kLimits.max_bytes));
  SYNCOPATE_ASSIGN_OR_RETURN(nlohmann::ordered_json config, ParseStrictOrderedJson(text, kLimits));
  const nlohmann::ordered_json before = config;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) config[key] = DTypeName(dtype);
  }
  if (!config.contains("dtype") && !config.contains("torch_dtype")) config["torch_dtype"] = DTypeName(dtype);
  if (config == before) return absl::OkStatus();
  return WriteFileAtomically(files, path, config.dump(2) + "\n");
}

}  // namespace

absl::Status WriteWeightFile(const std::string& path, const std::vector<TensorToWrite>& tensors,
                             const ExportOptions& options, const std::map<std::string, std::string>& metadata) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             options.files->OpenForAppend(path, FileSystem::OpenMode::kCreateNew));
  std::vector<TensorToWrite> writers;
  for (const TensorToWrite& tensor : tensors) writers.push_back(InDType(tensor, options.dtype));
  SYNCOPATE_RETURN_IF_ERROR(
      StreamSafetensors(writers, metadata, [&file](absl::string_view bytes) { return file->Append(bytes); }));
  return file->Sync();
}

// Other programs look for model folders, so a rename gives the folder its name when all of it is on disk. The rest of
// an earlier attempt is removed.
absl::Status WriteNewFolder(const std::string& folder, const ExportOptions& options,
                            const std::function<absl::Status(const std::string& partial)>& fill) {
  FileSystem* const files = options.files;
  SYNCOPATE_RETURN_IF_ERROR(CheckFolderIsFree(files, folder));
  const std::string partial = options.partial.empty() ? absl::StrCat(folder, ".partial") : options.partial;
  SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(partial));
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(partial));
  absl::Status status = fill(partial);
  if (status.ok()) status = files->SyncDir(partial);
  if (status.ok()) status = files->Rename(partial, folder);
  if (status.ok()) status = files->SyncDir(ParentPath(folder));
  if (status.ok()) return status;
  (void)files->RemoveTree(partial);  // the first error is the one that is returned
  return status;
}

absl::StatusOr<ExportedModel> ExportModel(const std::vector<TensorToWrite>& tensors, const std::string& description,
                                          const std::string& folder, const ExportOptions& options) {
  const std::string to(absl::StripSuffix(folder, "/"));
  FileSystem* const files = options.files;
  SYNCOPATE_RETURN_IF_ERROR(CheckFolderIsFree(files, to));
  SYNCOPATE_ASSIGN_OR_RETURN(const HfModel model, ReadHfConfig(description));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<TensorToWrite> arranged,
                             Arrange(tensors, ParameterSpecs(model.config, DType::kFloat32)));
  ExportedModel written;
  SYNCOPATE_RETURN_IF_ERROR(WriteNewFolder(to, options, [&](const std::string& partial) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(written, WriteWeights(partial, arranged, options));
    SYNCOPATE_RETURN_IF_ERROR(CopyModelDescription(description, partial, files));
    return WriteDType(files, partial, options.dtype);
  }));
  return written;
}

absl::StatusOr<DType> ParseExportDType(const std::string& name) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_DTYPE",
               absl::StrCat("\"", name, "\" is no dtype of weights; there are bfloat16 and float32"));
}

}  // namespace syncopate::model
