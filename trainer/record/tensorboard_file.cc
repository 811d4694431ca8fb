#include "trainer/record/tensorboard_file.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <functional>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// Written by hand, as two messages of TensorFlow's are all that is needed of it.
constexpr char kFileVersion[] = "brain.Event:2";
constexpr int kSessionStart = 1;  // SessionLog.START

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
enum EventField { kWallTime = 1, kStep = 2, kVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2 };
enum SessionLogField { kStatus = 1 };

std::string Encoded(const std::function<void(CodedOutputStream*)>& write) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  CodedOutputStream output(&stream);
  write(&output);
  output.Trim();
  return bytes;
}

std::string SummaryFor(const std::vector<TensorBoardFile::Scalar>& scalars) {
  return Encoded([&scalars](CodedOutputStream* summary) {
    for (const TensorBoardFile::Scalar& scalar : scalars) {
      WireFormatLite::WriteBytes(kValue, Encoded([&scalar](CodedOutputStream* value) {
                                   WireFormatLite::WriteString(kTag, scalar.tag, value);
                                   WireFormatLite::WriteFloat(kSimpleValue, static_cast<float>(scalar.value), value);
                                 }),
                                 summary);
    }
  });
}

// `contents` may be empty: an event that says when alone.
std::string MakeEvent(double wall_time, int64_t step, EventField kind, const std::string& contents) {
  return Encoded([&](CodedOutputStream* event) {
    WireFormatLite::WriteDouble(kWallTime, wall_time, event);
    WireFormatLite::WriteInt64(kStep, step, event);
    WireFormatLite::WriteBytes(kind, contents, event);
  });
}

std::string SessionStart() {
  return Encoded([](CodedOutputStream* log) { WireFormatLite::WriteEnum(kStatus, kSessionStart, log); });
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// TFRecord stores CRCs in this form, because a CRC over bytes that contain CRCs detects errors badly.
uint32_t Masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

}  // namespace

// Length, its checksum, payload, its checksum; numbers little-endian.
std::string TfRecord(absl::string_view payload) {
  std::string record;
  AppendLittleEndian(payload.size(), 8, &record);
  AppendLittleEndian(Masked(Crc32c(record)), 4, &record);
  record.append(payload.data(), payload.size());
  AppendLittleEndian(Masked(Crc32c(payload)), 4, &record);
  return record;
}

absl::StatusOr<std::unique_ptr<TensorBoardFile>> TensorBoardFile::Open(FileSystem* files, const std::string& folder,
                                                                       const PolicyVersion& start, const Clock* clock) {
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(folder));
  const std::string path = JoinPath(folder, absl::StrFormat("events.out.tfevents.%010d.syncopate", start.epoch));
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, files->OpenForAppend(path, FileSystem::OpenMode::kOpenOrCreate));
  std::unique_ptr<TensorBoardFile> opened(new TensorBoardFile(std::move(file), clock));
  const double now = clock->UnixSeconds();
  // A resumed run makes steps again: readers drop what they have from this step on.
  opened->Append(TfRecord(MakeEvent(now, 0, kVersion, kFileVersion)) +
                 TfRecord(MakeEvent(now, start.step + 1, kSessionLog, SessionStart())));
  return opened;
}

void TensorBoardFile::Write(int64_t step, const std::vector<Scalar>& scalars) {
  Append(TfRecord(MakeEvent(clock_->UnixSeconds(), step, kSummary, SummaryFor(scalars))));
}

void TensorBoardFile::Append(const std::string& events) {
  const int64_t before = file_->size();
  const absl::Status written = file_->Append(events);
  if (written.ok()) return;
  // Half a record would spoil all that follow. What cannot be cut off either ends the file for its readers, whose
  // checksums find it.
  file_->Truncate(before).IgnoreError();
  if (lost_++ == 0) SYNCOPATE_LOG(kError, "TensorBoard's file loses events: %s", written.ToString());
}

}  // namespace syncopate::trainer
