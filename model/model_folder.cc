#include "model/model_folder.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/mapped_file.h"

namespace syncopate::model {
namespace {

constexpr int64_t kMaxDescriptionBytes = 256 << 20;  // of one file; a tokenizer.json of a large vocabulary has 20 MB

// What transformers writes beside the weights.
constexpr const char* kDescription[] = {kHfConfigFile,           kGenerationConfigFile, "tokenizer.json",
                                        "tokenizer_config.json", "tokenizer.model",     "special_tokens_map.json",
                                        "added_tokens.json",     "vocab.json",          "merges.txt",
                                        "chat_template.json",    "chat_template.jinja"};

}  // namespace

absl::StatusOr<std::string> ReadModelFile(const std::string& path, int64_t max_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (static_cast<int64_t>(file->bytes().size()) > max_bytes) {
    return Error(absl::StatusCode::kInvalidArgument, "FILE_TOO_LARGE",
                 absl::StrCat(path, " has ", file->bytes().size(), " bytes; at most ", max_bytes, " are read"));
  }
  return std::string(file->bytes());
}

absl::Status CopyModelDescription(const std::string& from, const std::string& to) {
  FileSystem* files = FileSystem::Real();
  for (const char* name : kDescription) {
    absl::StatusOr<std::string> contents = ReadModelFile(JoinPath(from, name), kMaxDescriptionBytes);
    if (contents.ok()) {
      SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(to));
      SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(files, JoinPath(to, name), *contents));
    } else if (!absl::IsNotFound(contents.status())) {
      return contents.status();
    } else if (std::string(name) == kHfConfigFile) {
      return Error(absl::StatusCode::kNotFound, "NO_MODEL",
                   absl::StrCat(from, " has no ", kHfConfigFile, ": it is no Hugging Face model directory"));
    } else {
      SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(JoinPath(to, name)));
    }
  }
  return files->SyncDir(to);
}

}  // namespace syncopate::model
