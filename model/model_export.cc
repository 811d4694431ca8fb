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

constexpr size_t kChunkElements = 1 << 20;  // rounded at a time

absl::Status CheckFolderIsFree(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = FileSystem::Real()->List(folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(names.status());
  if (names->empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "FOLDER_TAKEN",
               absl::StrCat(folder, " is not empty; name a folder that is not there yet"));
}

// The tensors in the order of `specs`.
absl::StatusOr<std::vector<StoredTensor>> Arrange(const std::vector<StoredTensor>& tensors,
                                                  const std::vector<TensorSpec>& specs) {
  std::map<std::string, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  std::vector<StoredTensor> arranged;
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

absl::Status WriteRounded(const StoredTensor& tensor, const ByteSink& sink) {
  const size_t count = tensor.data.size() / sizeof(float);
  std::vector<uint16_t> rounded(std::min(count, kChunkElements));
  for (size_t begin = 0; begin < count; begin += kChunkElements) {
    const size_t end = std::min(count, begin + kChunkElements);
    for (size_t i = begin; i < end; ++i) {
      float value;
      std::memcpy(&value, tensor.data.data() + i * sizeof(float), sizeof(float));
      rounded[i - begin] = RoundToBFloat16(value);
    }
    const absl::string_view bytes(reinterpret_cast<const char*>(rounded.data()), 2 * (end - begin));
    // Rounding may have made an infinity of a very large number.
    const std::optional<int64_t> bad =
        FindNonFinite(bytes.data(), static_cast<int64_t>(end - begin), kBFloat16Exponent);
    if (bad.has_value()) {
      return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
                   absl::StrFormat("element %d of %s is not finite in bfloat16", begin + *bad, tensor.name));
    }
    SYNCOPATE_RETURN_IF_ERROR(sink(bytes));
  }
  return absl::OkStatus();
}

absl::Status WriteWhole(const StoredTensor& tensor, const ByteSink& sink) {
  const std::optional<int64_t> bad =
      FindNonFinite(tensor.data.data(), static_cast<int64_t>(tensor.data.size() / sizeof(float)), kFloat32Exponent);
  if (!bad.has_value()) return sink(tensor.data);
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
               absl::StrFormat("element %d of %s is not finite", *bad, tensor.name));
}

TensorToWrite ToWrite(const StoredTensor& tensor, DType dtype) {
  const bool rounds = dtype == DType::kBFloat16;
  return {tensor.name, ToStoredDType(dtype), tensor.shape, [tensor, rounds](const ByteSink& sink) {
            return rounds ? WriteRounded(tensor, sink) : WriteWhole(tensor, sink);
          }};
}

int64_t BytesInFile(const StoredTensor& tensor, DType dtype) {
  return static_cast<int64_t>(tensor.data.size() / sizeof(float)) * DTypeBytes(dtype);
}

// Tensors in order, as many to a file as fit.
std::vector<std::vector<StoredTensor>> CutIntoShards(const std::vector<StoredTensor>& tensors,
                                                     const ExportOptions& options) {
  std::vector<std::vector<StoredTensor>> shards;
  int64_t room = -1;
  for (const StoredTensor& tensor : tensors) {
    const int64_t bytes = BytesInFile(tensor, options.dtype);
    if (shards.empty() || bytes > room) {
      shards.emplace_back();
      room = options.max_shard_bytes;
    }
    shards.back().push_back(tensor);
    room -= bytes;
  }
  return shards;
}

absl::Status WriteShard(const std::string& path, const std::vector<StoredTensor>& tensors, DType dtype) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             FileSystem::Real()->OpenForAppend(path, FileSystem::OpenMode::kCreateNew));
  std::vector<TensorToWrite> writers;
  for (const StoredTensor& tensor : tensors) writers.push_back(ToWrite(tensor, dtype));
  SYNCOPATE_RETURN_IF_ERROR(
      StreamSafetensors(writers, {{"format", "pt"}}, [&file](absl::string_view bytes) { return file->Append(bytes); }));
  return file->Sync();
}

std::string ShardName(size_t index, size_t count) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

absl::StatusOr<ExportedModel> WriteWeights(const std::string& folder, const std::vector<StoredTensor>& tensors,
                                           const ExportOptions& options) {
  const std::vector<std::vector<StoredTensor>> shards = CutIntoShards(tensors, options);
  ExportedModel written{.files = static_cast<int64_t>(shards.size())};
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? kWeightsFile : ShardName(i, shards.size());
    SYNCOPATE_RETURN_IF_ERROR(WriteShard(JoinPath(folder, name), shards[i], options.dtype));
    for (const StoredTensor& tensor : shards[i]) {
      map[tensor.name] = name;
      written.bytes += BytesInFile(tensor, options.dtype);
    }
  }
  if (shards.size() == 1) return written;
  const nlohmann::json index = {{"metadata", {{"total_size", written.bytes}}}, {"weight_map", map}};
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text, DumpJson(index, 2));
  SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(FileSystem::Real(), JoinPath(folder, kWeightsIndexFile), text + "\n"));
  return written;
}

}  // namespace

absl::StatusOr<ExportedModel> ExportModel(const std::vector<StoredTensor>& tensors, const std::string& description,
                                          const std::string& folder, const ExportOptions& options) {
  const std::string to(absl::StripSuffix(folder, "/"));
  FileSystem* files = FileSystem::Real();
  SYNCOPATE_RETURN_IF_ERROR(CheckFolderIsFree(to));
  SYNCOPATE_ASSIGN_OR_RETURN(const HfModel model, ReadHfConfig(description));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<StoredTensor> arranged,
                             Arrange(tensors, ParameterSpecs(model.config, DType::kFloat32)));
  const std::string partial = absl::StrCat(to, ".partial");
  SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(partial));
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(partial));
  absl::StatusOr<ExportedModel> written = WriteWeights(partial, arranged, options);
  absl::Status status = written.status();
  if (status.ok()) status = CopyModelDescription(description, partial);
  if (status.ok()) status = files->SyncDir(partial);
  if (status.ok()) status = files->Rename(partial, to);
  if (status.ok()) status = files->SyncDir(ParentPath(to));
  if (status.ok()) return written;
  (void)files->RemoveTree(partial);  // what went wrong first is what is said
  return status;
}

absl::StatusOr<DType> ParseExportDType(const std::string& name) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_DTYPE",
               absl::StrCat("\"", name, "\" is no dtype of weights; there are bfloat16 and float32"));
}

}  // namespace syncopate::model
