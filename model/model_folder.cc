#include "model/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/git_lfs.h"
#include "base/mapped_file.h"
#include "base/strict_json.h"

namespace syncopate::model {
namespace {

constexpr int64_t kMaxDescriptionBytes = 256 << 20;  // of one file; a tokenizer.json of a large vocabulary has 20 MB

// The files that transformers writes next to the weights.
constexpr const char* kDescription[] = {kHfConfigFile,           kGenerationConfigFile, "tokenizer.json",
                                        "tokenizer_config.json", "tokenizer.model",     "special_tokens_map.json",
                                        "added_tokens.json",     "vocab.json",          "merges.txt",
                                        "chat_template.json",    "chat_template.jinja"};

// A file of a directory of adapters that PEFT saves.
constexpr char kAdapterFile[] = "adapter_config.json";
// A file of a run's checkpoint.
constexpr char kCheckpointFile[] = "manifest.json";

// The model that adapters were made for, if their file says so.
std::string BaseOfAdapter(const std::string& path) {
  constexpr int64_t kMaxAdapterBytes = 1 << 20;
  const absl::StatusOr<std::string> text = ReadModelFile(path, kMaxAdapterBytes);
  if (!text.ok()) return "";
  const auto json = ParseStrictJson(*text, {.max_bytes = kMaxAdapterBytes, .max_depth = 16});
  if (!json.ok() || !json->is_object() || !json->contains("base_model_name_or_path")) return "";
  const nlohmann::json& base = (*json)["base_model_name_or_path"];
  return base.is_string() ? absl::StrCat(" of ", base.get<std::string>()) : "";
}

// Whether `folder` looks like "Qwen/Qwen3-0.6B" and not like a path.
bool LooksLikeAHubName(const std::string& folder) {
  return std::count(folder.begin(), folder.end(), '/') == 1 && folder.front() != '/' && folder.front() != '.' &&
         folder.back() != '/';
}

}  // namespace

absl::Status ExplainNoModel(const std::string& folder) {
  auto no_model = [](const std::string& message) { return Error(absl::StatusCode::kNotFound, "NO_MODEL", message); };
  std::error_code ignored;
  auto there = [&](const char* name) { return std::filesystem::exists(JoinPath(folder, name), ignored); };
  if (!std::filesystem::exists(folder, ignored)) {
    return no_model(absl::StrCat(
        folder, " is not there: a Hugging Face model directory is looked for on this machine",
        LooksLikeAHubName(folder) ? absl::StrCat("; get it with: hf download ", folder, " --local-dir FOLDER") : ""));
  }
  if (there(kAdapterFile)) {
    return no_model(absl::StrCat(folder, " is a directory of PEFT adapters",
                                 BaseOfAdapter(JoinPath(folder, kAdapterFile)),
                                 ", which go into lora.path; model.path is the directory of their model"));
  }
  if (there(kCheckpointFile)) {
    return no_model(
        absl::StrCat(folder, " is a checkpoint; make a model directory of it with: syncopate export ", folder, " DIR"));
  }
  return no_model(absl::StrCat(folder, " has no ", kHfConfigFile, ": it is no Hugging Face model directory"));
}

absl::StatusOr<std::string> ReadModelFile(const std::string& path, int64_t max_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  SYNCOPATE_RETURN_IF_ERROR(RefuseLfsPointer(file->bytes(), path));
  if (static_cast<int64_t>(file->bytes().size()) > max_bytes) {
    return Error(absl::StatusCode::kInvalidArgument, "FILE_TOO_LARGE",
                 absl::StrCat(path, " has ", file->bytes().size(), " bytes; at most ", max_bytes, " are read"));
  }
  return std::string(file->bytes());
}

absl::Status CopyModelDescription(const std::string& from, const std::string& to, FileSystem* files) {
  for (const char* name : kDescription) {
    absl::StatusOr<std::string> contents = ReadModelFile(JoinPath(from, name), kMaxDescriptionBytes);
    if (contents.ok()) {
      SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(to));
      SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(files, JoinPath(to, name), *contents));
    } else if (!absl::IsNotFound(contents.status())) {
      return contents.status();
    } else if (std::string(name) == kHfConfigFile) {
      return ExplainNoModel(from);
    } else {
      SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(JoinPath(to, name)));
    }
  }
  return files->SyncDir(to);
}

}  // namespace syncopate::model
