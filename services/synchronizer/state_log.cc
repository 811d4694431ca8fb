#include "services/synchronizer/state_log.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "services/codec/sync_codec.h"

namespace syncopate::services {
namespace {

using synchronizer::LedgerRecord;
using synchronizer::VersionLedger;

constexpr size_t kRewriteAbove = 4096;  // records; a rewritten log has about a hundred

absl::StatusOr<std::vector<LedgerRecord>> ReadAll(FileSystem* files, const std::string& path) {
  std::vector<LedgerRecord> records;
  SYNCOPATE_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open(files, path));
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<std::string> payload, reader.Next());
    if (!payload.has_value()) return records;
    v1::SynchronizerLogRecord message;
    if (!message.ParseFromString(*payload)) {
      return Error(absl::StatusCode::kDataLoss, "BAD_LEDGER", path + " holds a record that is no synchronizer state");
    }
    SYNCOPATE_ASSIGN_OR_RETURN(LedgerRecord record, FromProto(message));
    records.push_back(std::move(record));
  }
}

absl::Status Rewrite(FileSystem* files, const std::string& path, const std::vector<LedgerRecord>& records) {
  std::string fresh = path + ".new";
  SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(fresh));
  {
    SYNCOPATE_ASSIGN_OR_RETURN(auto writer, RecordWriter::Create(files, fresh));
    for (const LedgerRecord& record : records) {
      SYNCOPATE_RETURN_IF_ERROR(writer->Append(ToProto(record).SerializeAsString()));
    }
    SYNCOPATE_RETURN_IF_ERROR(writer->Sync());
  }
  SYNCOPATE_RETURN_IF_ERROR(files->Rename(fresh, path));
  return files->SyncDir(ParentPath(path));
}

}  // namespace

absl::StatusOr<StateLog::Opened> StateLog::Open(FileSystem* files, const std::string& dir) {
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(dir));
  std::string path = JoinPath(dir, "log");
  Opened opened;
  if (files->FileBytes(path).ok()) {
    SYNCOPATE_ASSIGN_OR_RETURN(opened.records, ReadAll(files, path));
  }
  if (opened.records.size() > kRewriteAbove) {
    SYNCOPATE_ASSIGN_OR_RETURN(VersionLedger ledger, VersionLedger::Restore(opened.records));
    opened.records = ledger.Snapshot();
    SYNCOPATE_RETURN_IF_ERROR(Rewrite(files, path, opened.records));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto writer, RecordWriter::Open(files, path));
  opened.log.reset(new StateLog(std::move(writer)));
  return opened;
}

absl::Status StateLog::Append(const LedgerRecord& record) {
  SYNCOPATE_RETURN_IF_ERROR(writer_->Append(ToProto(record).SerializeAsString()));
  return writer_->Sync();
}

}  // namespace syncopate::services
