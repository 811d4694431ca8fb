// Parses an untrusted message, whose kind is its first byte: the result is an error or a record that survives a round
// trip.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>

#include <cstdlib>
#include <string>

#include "base/identity.h"
#include "services/wire/codec.h"
#include "services/wire/model_codec.h"
#include "services/wire/sync_codec.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace syncopate;  // NOLINT: a program of its own

// Serializes a message; equal messages give equal bytes, whatever the order of their maps.
std::string Bytes(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

// Converts bytes -> message -> record -> message -> record: both records must have the same message.
template <typename Message>
void RoundTrip(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  const auto record = wire::FromProto(message);
  if (!record.ok()) return;
  const auto made = wire::ToProto(*record);
  const auto again = wire::FromProto(made);
  if (!again.ok()) std::abort();
  if (Bytes(wire::ToProto(*again)) != Bytes(made)) std::abort();
}

}  // namespace

SYNCOPATE_FUZZ_TARGET(wire_message) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      RoundTrip<v1::MemberId>(bytes);
      break;
    case 1:
      RoundTrip<v1::ExchangeResponse::Lease>(bytes);
      break;
    case 2:
      RoundTrip<v1::TrajectoryGroup>(bytes);
      break;
    case 3:
      RoundTrip<v1::Manifest>(bytes);
      break;
    case 4:
      RoundTrip<v1::JoinRequest::Hello>(bytes);
      break;
    case 5:
      RoundTrip<v1::JoinRequest::SyncReport>(bytes);
      break;
    case 6:
      RoundTrip<v1::ModelShape>(bytes);
      break;
    default:
      (void)wire::ProtoStateCodec().decode(bytes);
      break;
  }
  return 0;
}
