#include "services/member/weight_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "services/rpc/server_stream.h"
#include "services/wire/codec.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::member {
namespace {

using Stream = rpc::ServerWriteStream<v1::FetchWeightsResponse>;

constexpr int64_t kMaxArenaBytes = int64_t{1} << 50;

absl::StatusOr<std::unique_ptr<synchronizer::WeightReader>> OpenVersion(synchronizer::WeightStore& store,
                                                                        const v1::FetchWeightsRequest& request) {
  if (request.manifest_fingerprint() != store.fingerprint()) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch,
                 "the receiver asks for weights of another model; give both sides the same model section");
  }
  for (const auto& range : request.ranges()) {  // bounds the sums below; the reader checks the upper end
    if (range.begin() >= 0 && range.begin() <= range.end() && range.end() <= kMaxArenaBytes) continue;
    return Error(absl::StatusCode::kInvalidArgument, "BAD_RANGE",
                 absl::StrFormat("[%d, %d) are no bytes of an arena", range.begin(), range.end()));
  }
  return store.Open(wire::FromProto(request.version()));
}

// One receiver's fetch. Its methods run one at a time: once at the start, then each time the stream has drained.
class Fetch {
 public:
  Fetch(std::unique_ptr<synchronizer::WeightReader> reader, const v1::FetchWeightsRequest& request)
      : reader_(std::move(reader)) {
    for (const auto& range : request.ranges()) ranges_.push_back({range.begin(), range.end()});
  }

  // Writes the next chunk to `stream`, or ends it.
  void Continue(Stream& stream) {
    while (next_ < ranges_.size() && ranges_[next_].size() == 0) ++next_;
    if (next_ == ranges_.size()) return End(stream, absl::OkStatus());
    ByteRange& rest = ranges_[next_];
    const ByteRange chunk{rest.begin, std::min(rest.begin + synchronizer::kChunkBytes, rest.end)};
    v1::FetchWeightsResponse response;
    response.set_offset(chunk.begin);
    response.mutable_data()->resize(static_cast<size_t>(chunk.size()));
    absl::Status read = reader_->Read(chunk, response.mutable_data()->data());
    if (!read.ok()) return End(stream, read);
    rest.begin = chunk.end;
    stream.Write(std::move(response));
  }

 private:
  // Releases the version before the receiver can see the end of the fetch.
  void End(Stream& stream, const absl::Status& status) {
    reader_.reset();
    stream.Finish(status);
  }

  std::unique_ptr<synchronizer::WeightReader> reader_;
  std::vector<ByteRange> ranges_;  // ranges that are still to be sent
  size_t next_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::FetchWeightsResponse>* WeightServiceImpl::FetchWeights(
    grpc::CallbackServerContext* context, const v1::FetchWeightsRequest* request) {
  auto stream = Stream::Create(context);
  absl::StatusOr<std::unique_ptr<synchronizer::WeightReader>> reader = OpenVersion(*store_, *request);
  if (!reader.ok()) {
    stream->Finish(reader.status());
    return stream->Start({});
  }
  auto fetch = std::make_shared<Fetch>(*std::move(reader), *request);
  fetch->Continue(*stream);
  // The stream keeps itself alive until its end; then it frees this callback and with it the fetch.
  return stream->Start({.on_drained = [fetch, raw = stream.get()] { fetch->Continue(*raw); }});
}

}  // namespace syncopate::member
