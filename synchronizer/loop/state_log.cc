#include "synchronizer/loop/state_log.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "base/reasons.h"

namespace syncopate::synchronizer {
namespace {

constexpr size_t kRewriteAbove = 1000;  // records, when a log is opened

struct Contents {
  std::vector<LedgerRecord> records;
  SyncTally syncs;
  size_t count = 0;  // number of records of both kinds
};

absl::StatusOr<Contents> ReadAll(FileSystem* files, const std::string& path, const StateCodec& codec) {
  Contents contents;
  SYNCOPATE_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open(files, path));
  for (;; ++contents.count) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<std::string> payload, reader.Next());
    if (!payload.has_value()) return contents;
    auto record = codec.decode(*payload);
    if (!record.ok()) return Annotate(record.status(), path);
    if (const auto* syncs = std::get_if<SyncTally>(&*record)) {
      contents.syncs.Merge(*syncs);
    } else {
      contents.records.push_back(std::get<LedgerRecord>(*std::move(record)));
    }
  }
}

std::string FreshPath(const std::string& path) { return path + ".new"; }

// Writes the whole log to a new file beside the old one.
absl::Status WriteFresh(FileSystem* files, const std::string& path, const StateCodec& codec,
                        const std::vector<LedgerRecord>& records, const SyncTally& syncs) {
  SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(FreshPath(path)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto writer, RecordWriter::Create(files, FreshPath(path)));
  for (const LedgerRecord& record : records) {
    SYNCOPATE_RETURN_IF_ERROR(writer->Append(codec.encode_record(record)));
  }
  if (syncs.count() > 0) SYNCOPATE_RETURN_IF_ERROR(writer->Append(codec.encode_syncs(syncs)));
  return writer->Sync();
}

absl::Status PutInPlace(FileSystem* files, const std::string& path) {
  SYNCOPATE_RETURN_IF_ERROR(files->Rename(FreshPath(path), path));
  return files->SyncDir(ParentPath(path));
}

}  // namespace

absl::StatusOr<StateLog::Opened> StateLog::Open(FileSystem* files, const std::string& dir, const StateCodec& codec) {
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(dir));
  std::string path = JoinPath(dir, "log");
  Contents contents;
  if (files->FileBytes(path).ok()) {
    SYNCOPATE_ASSIGN_OR_RETURN(contents, ReadAll(files, path, codec));
  }
  Opened opened{.log = nullptr, .records = std::move(contents.records), .syncs = std::move(contents.syncs)};
  if (contents.count > kRewriteAbove) {
    SYNCOPATE_ASSIGN_OR_RETURN(VersionLedger ledger, VersionLedger::Restore(opened.records));
    opened.records = ledger.Snapshot();
    SYNCOPATE_RETURN_IF_ERROR(WriteFresh(files, path, codec, opened.records, opened.syncs));
    SYNCOPATE_RETURN_IF_ERROR(PutInPlace(files, path));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto writer, RecordWriter::Open(files, path));
  opened.log.reset(new StateLog(files, path, codec, std::move(writer)));
  return opened;
}

absl::Status StateLog::Add(const std::string& record) {
  if (writer_ == nullptr) SYNCOPATE_RETURN_IF_ERROR(OpenAgain());
  if (taken_back_) {
    SYNCOPATE_RETURN_IF_ERROR(writer_->Append(codec_.encode_syncs(unsynced_)));
    taken_back_ = false;
  }
  SYNCOPATE_RETURN_IF_ERROR(writer_->Append(record));
  ++appended_;
  return absl::OkStatus();
}

absl::Status StateLog::Append(const LedgerRecord& record) {
  SYNCOPATE_RETURN_IF_ERROR(Add(codec_.encode_record(record)));
  const absl::Status synced = writer_->Sync();
  taken_back_ = !synced.ok() && unsynced_.count() > 0;
  if (synced.ok()) unsynced_ = SyncTally();
  return synced;
}

absl::Status StateLog::AppendSyncs(const SyncTally& ended) {
  SYNCOPATE_RETURN_IF_ERROR(Add(codec_.encode_syncs(ended)));
  unsynced_.Merge(ended);
  return absl::OkStatus();
}

// Syncs the folder first: if the rename were not durable, the older file could come back without later records.
absl::Status StateLog::OpenAgain() {
  SYNCOPATE_RETURN_IF_ERROR(files_->SyncDir(ParentPath(path_)));
  SYNCOPATE_ASSIGN_OR_RETURN(writer_, RecordWriter::Open(files_, path_));
  unsynced_ = SyncTally();  // opening makes everything in the file durable
  taken_back_ = false;
  return absl::OkStatus();
}

absl::Status StateLog::Compact(const std::vector<LedgerRecord>& snapshot, const SyncTally& syncs) {
  appended_ = 0;
  absl::Status written = WriteFresh(files_, path_, codec_, snapshot, syncs);
  if (!written.ok()) {
    SYNCOPATE_LOG(kWarning, "the state log is left as long as it is: %s", written.ToString());
    return absl::OkStatus();
  }
  writer_.reset();  // the file that it appends to is about to be replaced
  written = files_->Rename(FreshPath(path_), path_);
  // Either file under this name has the same meaning from here on. If it cannot be opened now, the next record opens
  // it.
  if (written.ok()) written = OpenAgain();
  if (ErrorReason(written) != reason::kNoSpace) return written;
  SYNCOPATE_LOG(kWarning, "the state log waits for the disk: %s", written.ToString());
  return absl::OkStatus();
}

}  // namespace syncopate::synchronizer
