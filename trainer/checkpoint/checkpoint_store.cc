#include "trainer/checkpoint/checkpoint_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/sha256.h"
#include "trainer/checkpoint/temporary_folders.h"

namespace syncopate::trainer {
namespace {

constexpr absl::string_view kBestFolder = "best";
constexpr int64_t kReadChunkBytes = 1 << 20;
constexpr int64_t kSyncEveryBytes = 1 << 30;

absl::Status Damaged(absl::string_view what) { return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", what); }

absl::Status NoCheckpoint(absl::string_view what) {
  return Error(absl::StatusCode::kNotFound, reason::kNoCheckpoint, what);
}

absl::Status CheckRequest(const CheckpointStore::SaveRequest& request) {
  auto bad = [&](absl::string_view what) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CHECKPOINT",
                 absl::StrCat("cannot save checkpoint ", request.version.ToString(), ": ", what));
  };
  if (request.version.epoch < 0 || request.version.step < 0) return bad("its version is negative");
  if (request.files.empty()) return bad("it has no files");
  if (request.ranks > 1 && request.await_others == nullptr)
    return bad("await_others is not set though there are several ranks");
  for (const auto& [name, contents] : request.files) {
    SYNCOPATE_RETURN_IF_ERROR(CheckFileName(name));
    if (name == kCheckpointManifestName) return bad(absl::StrCat(name, " is the store's own file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> WriteOneFile(FileSystem* files, const std::string& path,
                                            const CheckpointStore::Contents& contents) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             files->OpenForAppend(path, FileSystem::OpenMode::kCreateNew));
  Sha256 hash;
  int64_t synced = 0;
  CheckpointStore::ByteSink sink = [&](absl::string_view bytes) -> absl::Status {
    // The digest is computed while the file is written: reading it again would take as long as writing.
    hash.Update(bytes);
    SYNCOPATE_RETURN_IF_ERROR(file->Append(bytes));
    // Syncs as it goes: otherwise the last call would have to write all of a large file, for a time that depends on the
    // host's memory.
    if (file->size() - synced < kSyncEveryBytes) return absl::OkStatus();
    synced = file->size();
    return file->Sync();
  };
  if (const std::string* bytes = std::get_if<std::string>(&contents)) {
    SYNCOPATE_RETURN_IF_ERROR(sink(*bytes));
  } else {
    SYNCOPATE_RETURN_IF_ERROR(std::get<1>(contents)(sink));
  }
  SYNCOPATE_RETURN_IF_ERROR(file->Sync());
  return CheckpointFile{file->size(), hash.FinishHex()};
}

// What is different between a file and what the manifest says of it; OK if nothing is.
absl::Status Compare(const std::string& path, const CheckpointFile& expected, const CheckpointFile& found) {
  if (found.bytes != expected.bytes) {
    return Damaged(absl::StrFormat("%s has %d bytes and should have %d", path, found.bytes, expected.bytes));
  }
  if (found.sha256 != expected.sha256) return Damaged(absl::StrCat("the SHA-256 of ", path, " is wrong"));
  return absl::OkStatus();
}

// A file or folder that is not there is damage here; every other error is the disk's.
absl::Status MissingIsDamage(const absl::Status& status) {
  return status.code() == absl::StatusCode::kNotFound ? Damaged(status.message()) : status;
}

// Whether an older checkpoint is the answer to this error. A wrong release or a missing permission is for people to
// mend: going back in time because of it would be a surprise.
bool IsDamage(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDataLoss || ErrorReason(status) == reason::kIoError;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(FileSystem* files, const std::string& root,
                                                                       absl::Duration disk_deadline) {
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(files, root, disk_deadline));
  SYNCOPATE_RETURN_IF_ERROR(store->files_->CreateDirs(root));
  SYNCOPATE_RETURN_IF_ERROR(RemoveTemporaryFolders(store->files_, root));
  return store;
}

std::string CheckpointStore::NewTemporaryPath(PolicyVersion version) const {
  return JoinPath(root_, NewTemporaryName(version.ToString()));
}

absl::StatusOr<std::string> CheckpointStore::BeginFolder(PolicyVersion version) {
  const std::string folder = NewTemporaryPath(version);
  SYNCOPATE_RETURN_IF_ERROR(files_->CreateDirs(folder));
  return folder.substr(root_.size() + 1);
}

absl::Status CheckpointStore::Save(const SaveRequest& request) {
  const std::string folder =
      request.folder.empty() ? NewTemporaryPath(request.version) : JoinPath(root_, request.folder);
  const absl::StatusOr<bool> saved = SaveInto(request, folder);
  if (saved.ok() && *saved) return absl::OkStatus();
  files_->RemoveTree(folder).IgnoreError();  // else the next Open removes it
  return Annotate(saved.status(), absl::StrCat("checkpoint ", request.version.ToString(), " was not saved"));
}

// Whether it was written: else it was there.
absl::StatusOr<bool> CheckpointStore::SaveInto(const SaveRequest& request, const std::string& folder) {
  const absl::StatusOr<Presence> presence = FindPresence(request);
  const bool is_due = presence.ok() && *presence != Presence::kWhole;
  const absl::StatusOr<Files> mine = is_due ? WriteMine(request, folder) : absl::StatusOr<Files>(Files());
  // Whatever became of it: they write into the folder until this returns.
  const absl::StatusOr<Files> others =
      request.await_others == nullptr ? absl::StatusOr<Files>(Files()) : request.await_others();
  SYNCOPATE_RETURN_IF_ERROR(presence.status());
  if (!is_due) {
    // Its name may not be durable yet: an earlier save may have failed just before it was.
    SYNCOPATE_RETURN_IF_ERROR(files_->SyncDir(root_));
    return false;
  }
  SYNCOPATE_RETURN_IF_ERROR(mine.status());
  SYNCOPATE_RETURN_IF_ERROR(others.status());
  SYNCOPATE_RETURN_IF_ERROR(WriteManifest(request, folder, *mine, *others));
  SYNCOPATE_RETURN_IF_ERROR(Publish(request, folder, /*replaces=*/*presence == Presence::kDamaged));
  return true;
}

absl::StatusOr<CheckpointStore::Presence> CheckpointStore::FindPresence(const SaveRequest& request) {
  SYNCOPATE_RETURN_IF_ERROR(CheckRequest(request));
  const absl::Status present = Verify(request.version).status();
  if (present.ok()) return Presence::kWhole;
  // A resumed run saves steps again that an earlier incarnation saved; a damaged checkpoint is then replaced.
  if (present.code() == absl::StatusCode::kDataLoss) return Presence::kDamaged;
  if (present.code() == absl::StatusCode::kNotFound) return Presence::kAbsent;
  return present;
}

absl::StatusOr<CheckpointStore::Files> CheckpointStore::WriteMine(const SaveRequest& request,
                                                                  const std::string& folder) {
  SYNCOPATE_RETURN_IF_ERROR(files_->CreateDirs(folder));
  return WriteFiles(files_, folder, request.files);
}

absl::Status CheckpointStore::WriteManifest(const SaveRequest& request, const std::string& folder, const Files& mine,
                                            const Files& others) {
  CheckpointManifest manifest{request.version, mine, request.metadata, request.ranks};
  for (const auto& [name, file] : others) {
    SYNCOPATE_RETURN_IF_ERROR(CheckFileName(name));
    const absl::StatusOr<int64_t> bytes = files_->FileBytes(JoinPath(folder, name));
    if (!bytes.ok() || *bytes != file.bytes || !manifest.files.emplace(name, file).second) {
      return Error(absl::StatusCode::kFailedPrecondition, "FOLDER_NOT_SHARED",
                   absl::StrCat(name, ", which another trainer rank has written, is not in ", folder,
                                "; the folder of checkpoints (checkpoint.dir) must be the same for all ranks"));
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::string text, FormatCheckpointManifest(manifest));
  SYNCOPATE_RETURN_IF_ERROR(WriteOneFile(files_, JoinPath(folder, kCheckpointManifestName), text).status());
  return files_->SyncDir(folder);
}

absl::StatusOr<CheckpointStore::Files> CheckpointStore::WriteFiles(FileSystem* files, const std::string& folder,
                                                                   const std::map<std::string, Contents>& contents) {
  Files written;
  for (const auto& [name, bytes] : contents) {
    SYNCOPATE_ASSIGN_OR_RETURN(written[name], WriteOneFile(files, JoinPath(folder, name), bytes));
  }
  return written;
}

absl::Status CheckpointStore::Publish(const SaveRequest& request, const std::string& folder, bool replaces) {
  // The last moment at which a trainer that has been fenced off can still notice it.
  if (request.last_look) SYNCOPATE_RETURN_IF_ERROR(request.last_look());
  std::string aside = NewTemporaryPath(request.version);
  if (replaces) {
    SYNCOPATE_LOG(kWarning, "%s is damaged and is replaced", GetPath(request.version));
    SYNCOPATE_RETURN_IF_ERROR(files_->Rename(GetPath(request.version), aside));
  }
  SYNCOPATE_RETURN_IF_ERROR(files_->Rename(folder, GetPath(request.version)));
  SYNCOPATE_RETURN_IF_ERROR(files_->SyncDir(root_));
  if (replaces) files_->RemoveTree(aside).IgnoreError();  // else the next Open removes it
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> CheckpointStore::Verify(PolicyVersion version) {
  std::string path = JoinPath(GetPath(version), kCheckpointManifestName);
  if (absl::Status there = files_->List(GetPath(version)).status(); !there.ok()) {
    if (there.code() == absl::StatusCode::kNotFound)
      return NoCheckpoint(absl::StrCat("there is no ", GetPath(version)));
    return there;
  }
  absl::StatusOr<std::string> text = syncopate::ReadFile(files_, path, kMaxCheckpointManifestBytes);
  if (text.status().code() == absl::StatusCode::kInvalidArgument) return Damaged(text.status().message());
  SYNCOPATE_RETURN_IF_ERROR(MissingIsDamage(text.status()));
  absl::StatusOr<CheckpointManifest> manifest = ParseCheckpointManifest(*text);
  SYNCOPATE_RETURN_IF_ERROR(Annotate(manifest.status(), GetPath(version)));
  if (manifest->version != version) {
    return Damaged(absl::StrCat(path, " is of version ", manifest->version.ToString()));
  }
  for (const auto& [name, expected] : manifest->files) {
    SYNCOPATE_RETURN_IF_ERROR(CheckFile(*manifest, name, expected));
  }
  return manifest;
}

absl::Status CheckpointStore::CheckFile(const CheckpointManifest& checkpoint, const std::string& name,
                                        const CheckpointFile& expected) {
  std::string path = JoinPath(GetPath(checkpoint.version), name);
  absl::StatusOr<int64_t> bytes = files_->FileBytes(path);
  SYNCOPATE_RETURN_IF_ERROR(MissingIsDamage(bytes.status()));
  SYNCOPATE_RETURN_IF_ERROR(Compare(path, {expected.bytes, ""}, {*bytes, ""}));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files_->OpenForRead(path));
  Sha256 hash;
  CheckpointFile found;
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string chunk, file->Read(kReadChunkBytes));
    if (chunk.empty()) break;
    hash.Update(chunk);
    found.bytes += static_cast<int64_t>(chunk.size());
  }
  found.sha256 = hash.FinishHex();
  return Compare(path, expected, found);
}

absl::StatusOr<CheckpointStore::Latest> CheckpointStore::LoadLatest() {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> versions, List());
  std::vector<Skipped> skipped;
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    absl::StatusOr<CheckpointManifest> manifest = Verify(*version);
    if (manifest.ok()) return Latest{*std::move(manifest), std::move(skipped)};
    if (!IsDamage(manifest.status())) return manifest.status();
    SYNCOPATE_LOG(kWarning, "checkpoint %s is skipped: %s", version->ToString(),
                  std::string(manifest.status().message()));
    skipped.push_back({version->ToString(), manifest.status()});
  }
  if (skipped.empty()) return NoCheckpoint(absl::StrCat("there is no checkpoint in ", root_));
  std::string reasons;
  for (const Skipped& skip : skipped) absl::StrAppend(&reasons, "; ", skip.name, ": ", skip.why.message());
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINTS_DAMAGED",
               absl::StrCat("no checkpoint in ", root_, " is whole", reasons, "; restore one from a copy"));
}

absl::StatusOr<CheckpointFile> CheckpointStore::FindFile(const CheckpointManifest& checkpoint,
                                                         const std::string& file) const {
  auto found = checkpoint.files.find(file);
  if (found != checkpoint.files.end()) return found->second;
  return Damaged(absl::StrCat("checkpoint ", checkpoint.version.ToString(), " has no file ", file));
}

absl::StatusOr<std::unique_ptr<MappedFile>> CheckpointStore::MapFile(const CheckpointManifest& checkpoint,
                                                                     const std::string& file) {
  const std::string path = JoinPath(GetPath(checkpoint.version), file);
  SYNCOPATE_ASSIGN_OR_RETURN(const CheckpointFile expected, FindFile(checkpoint, file));
  absl::StatusOr<std::unique_ptr<MappedFile>> mapped = MappedFile::Open(path);
  SYNCOPATE_RETURN_IF_ERROR(MissingIsDamage(mapped.status()));
  const auto bytes = static_cast<int64_t>((*mapped)->bytes().size());
  SYNCOPATE_RETURN_IF_ERROR(Compare(path, {expected.bytes, ""}, {bytes, ""}));
  return mapped;
}

absl::StatusOr<std::string> CheckpointStore::ReadFile(const CheckpointManifest& checkpoint, const std::string& file) {
  const std::string path = JoinPath(GetPath(checkpoint.version), file);
  SYNCOPATE_ASSIGN_OR_RETURN(const CheckpointFile expected, FindFile(checkpoint, file));
  absl::StatusOr<std::string> contents = syncopate::ReadFile(files_, path, expected.bytes);
  if (contents.status().code() == absl::StatusCode::kInvalidArgument) return Damaged(contents.status().message());
  SYNCOPATE_RETURN_IF_ERROR(MissingIsDamage(contents.status()));
  CheckpointFile found{static_cast<int64_t>(contents->size()), Sha256Hex(*contents)};
  SYNCOPATE_RETURN_IF_ERROR(Compare(path, expected, found));
  return contents;
}

absl::StatusOr<std::vector<PolicyVersion>> CheckpointStore::List() {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<std::string> names, files_->List(root_));
  std::vector<PolicyVersion> versions;
  for (const std::string& name : names) {
    if (auto version = ParseCheckpointName(name)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

std::string CheckpointStore::BestPath() const { return JoinPath(root_, kBestFolder); }

absl::Status CheckpointStore::RemoveBestUnless(PolicyVersion version) {
  if (absl::Status there = files_->List(BestPath()).status(); !there.ok()) {
    return absl::IsNotFound(there) ? absl::OkStatus() : there;
  }
  auto text = syncopate::ReadFile(files_, JoinPath(BestPath(), kCheckpointManifestName), kMaxCheckpointManifestBytes);
  if (text.ok()) {
    absl::StatusOr<CheckpointManifest> manifest = ParseCheckpointManifest(*text);
    if (manifest.ok() && manifest->version == version) return absl::OkStatus();
  } else if (!absl::IsNotFound(text.status()) && !absl::IsInvalidArgument(text.status())) {
    return text.status();  // the disk's: it may be the right one
  }
  return Remove(BestPath(), version);
}

// Renames the folder before it deletes it, so that no half deleted folder ever has a checkpoint's name.
absl::Status CheckpointStore::Remove(const std::string& folder, PolicyVersion version) {
  const std::string aside = NewTemporaryPath(version);
  SYNCOPATE_RETURN_IF_ERROR(files_->Rename(folder, aside));
  SYNCOPATE_RETURN_IF_ERROR(files_->SyncDir(root_));
  return files_->RemoveTree(aside);
}

absl::Status CheckpointStore::MoveToBest(PolicyVersion version) {
  if (files_->List(BestPath()).ok()) SYNCOPATE_RETURN_IF_ERROR(Remove(BestPath(), version));
  SYNCOPATE_RETURN_IF_ERROR(files_->Rename(GetPath(version), BestPath()));
  return files_->SyncDir(root_);
}

absl::StatusOr<std::vector<PolicyVersion>> CheckpointStore::Prune(int keep, PolicyVersion best) {
  if (keep < 2) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                 "at least 2 checkpoints are kept, so that one stays if another turns out damaged");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> versions, List());
  size_t deletable = versions.size();  // [0, deletable) are lower than the `keep` highest that verify
  for (int good = 0; good < keep && deletable > 0;) {
    // Only whole ones count, or a few damaged ones would drive out the last good one.
    if (Verify(versions[--deletable]).ok()) ++good;
  }
  versions.resize(deletable);
  for (PolicyVersion version : versions) {
    SYNCOPATE_RETURN_IF_ERROR(version == best ? MoveToBest(version) : Remove(GetPath(version), version));
  }
  return versions;
}

}  // namespace syncopate::trainer
