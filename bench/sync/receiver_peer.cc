#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/process/json_fields.h"
#include "bench/sync/bench_peer.h"
#include "bench/sync/bench_weights.h"
#include "bench/sync/peer_commands.h"
#include "bench/sync/peer_common.h"
#include "services/member/member_client.h"
#include "synchronizer/transport/weight_receiver.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;
using synchronizer::Piece;

constexpr absl::Duration kHoldLimit = absl::Seconds(10);
constexpr int kSamplesAPiece = 4;

MemberId ReceiverId(const PeerOptions& options, const MemberSecret& secret) {
  return {synchronizer::kRollouterRole, absl::StrCat("rollouter-", options.replica), options.rank, options.world,
          secret.incarnation()};
}

double GetSeconds(const std::vector<DecodeLoop::Window>& windows) {
  absl::Duration sum;
  for (const auto& [begin, end] : windows) sum += end - begin;
  return absl::ToDoubleSeconds(sum);
}

// A rollouter rank that does not decode, but reads its weights.
class ReceiverPeer {
 public:
  ReceiverPeer(const PeerOptions& options, PeerPlan plan, EventSink* sink)
      : options_(options),
        plan_(std::move(plan)),
        sink_(sink),
        secret_(MemberSecret::Draw()),
        id_(ReceiverId(options, secret_)) {}
  ~ReceiverPeer() {
    if (client_ != nullptr) client_->Stop(kGrace);
  }

  absl::Status Join(PeerDevice* device);
  absl::Status Run(PeerDevice* device);

 private:
  absl::Status Reset();
  absl::Status Report(PeerDevice* device);
  absl::Status Verify(int64_t step);
  // Returns the number of wrong samples in a piece.
  absl::StatusOr<int64_t> CheckPiece(const Piece& piece, int64_t step);

  const PeerOptions options_;
  const PeerPlan plan_;
  EventSink* const sink_;
  const MemberSecret secret_;
  const MemberId id_;
  std::unique_ptr<ReceiverWeights> weights_;
  std::unique_ptr<synchronizer::WeightReceiver> receiver_;
  std::unique_ptr<member::ReceiverParticipant> participant_;
  std::unique_ptr<WatchedParticipant> watched_;
  std::unique_ptr<member::MemberClient> client_;
};

absl::Status ReceiverPeer::Join(PeerDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(weights_, device->MakeReceiver(options_, plan_));
  const auto transports = Offered(options_, weights_->transports());
  synchronizer::WeightReceiver::Options receiver;
  receiver.manifest = plan_.manifest;
  receiver.member = id_;
  receiver.layout = options_.receiver_layout;
  receiver_ = std::make_unique<synchronizer::WeightReceiver>(std::move(receiver), weights_->target(), transports);
  participant_ = std::make_unique<member::ReceiverParticipant>(receiver_.get());
  watched_ = std::make_unique<WatchedParticipant>(participant_.get(), sink_);

  member::MemberClient::Options client;
  client.synchronizer_address = options_.synchronizer;
  client.hello.member = id_;
  client.secret = secret_;
  client.hello.address = "127.0.0.1:1";  // no process calls a receiver
  client.hello.manifest = std::make_shared<Manifest>(plan_.manifest);
  client.hello.facts = device->facts();
  client.hello.layout = options_.receiver_layout;
  for (const auto* transport : transports) client.hello.transports.push_back(transport->name());
  client.serving = [receiver = receiver_.get()] {
    return member::MemberClient::Serving{receiver->serving(), receiver->serving_digest(), "", receiver->base_digest()};
  };
  client.on_refused = [sink = sink_](const absl::Status& status) {
    sink->Write("failed", {{"error", std::string(status.message())}});
  };
  SYNCOPATE_ASSIGN_OR_RETURN(client_, member::MemberClient::Start(std::move(client), watched_.get()));
  return client_->WaitForWelcome(kWelcomeLimit).status();
}

absl::Status ReceiverPeer::Run(PeerDevice* device) {
  PeerCommands commands = CommonCommands(device, watched_.get(), sink_);
  commands["reset"] = [this](const json&) { return Reset(); };
  commands["report"] = [this, device](const json&) { return Report(device); };
  commands["verify"] = [this](const json& arguments) { return Verify(IntegerIn(arguments, "step")); };
  sink_->Write("ready");
  return RunCommands(commands);
}

absl::Status ReceiverPeer::Reset() {
  watched_->Forget();
  weights_->loop()->Forget();
  sink_->Write("answer");
  return absl::OkStatus();
}

absl::Status ReceiverPeer::Report(PeerDevice* device) {
  const DecodeLoop& loop = *weights_->loop();
  SYNCOPATE_RETURN_IF_ERROR(loop.status());
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t bytes, device->MemoryUsed());
  const auto calm = watched_->Calm();
  const auto transfers = watched_->Transfers();
  sink_->Write("answer", {{"memory_bytes", bytes},
                          {"epoch", receiver_->serving().epoch},
                          {"step", receiver_->serving().step},
                          {"digest", absl::StrCat(receiver_->serving_digest())},
                          {"calm_steps", loop.StepsWithin(calm)},
                          {"calm_seconds", GetSeconds(calm)},
                          {"transfer_steps", loop.StepsWithin(transfers)},
                          {"transfer_seconds", GetSeconds(transfers)},
                          {"longest_gap_seconds", absl::ToDoubleSeconds(loop.LongestGap())}});
  return absl::OkStatus();
}

absl::Status ReceiverPeer::Verify(int64_t step) {
  // Weights are compared between two steps, because an install would change them meanwhile.
  SYNCOPATE_RETURN_IF_ERROR(weights_->loop()->Hold(kHoldLimit));
  int64_t checked = 0;
  int64_t wrong = 0;
  absl::Status status;
  for (const Piece& piece : plan_.receiver.pieces()) {
    if (piece.rank != options_.rank || !status.ok()) continue;
    absl::StatusOr<int64_t> found = CheckPiece(piece, step);
    status.Update(found.status());
    if (!found.ok()) break;
    checked += kSamplesAPiece;
    wrong += *found;
  }
  weights_->loop()->Release();
  sink_->Write("answer", {{"checked", checked}, {"wrong", wrong}, {"error", std::string(status.message())}});
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReceiverPeer::CheckPiece(const Piece& piece, int64_t step) {
  const DType dtype = plan_.manifest.tensors()[piece.tensor].dtype;
  const int64_t width = DTypeBytes(dtype);
  int64_t wrong = 0;
  for (int i = 0; i < kSamplesAPiece; ++i) {
    // The first sample, the last, and some between, which differ in each step.
    int64_t at = static_cast<int64_t>(Mix64(step * kSamplesAPiece + i + piece.offset) >> 1) % piece.elements();
    if (i == 0) at = 0;
    if (i == 1) at = piece.elements() - 1;
    // A piece may be a column block: its rows are `stride` elements apart in the whole tensor, and dense here.
    const int64_t element = piece.begin + at / piece.row_elements() * piece.stride + at % piece.row_elements();
    const uint64_t wanted = dtype == DType::kFloat32 ? BenchWeightBits(piece.tensor, element, step)
                                                     : BenchWeightBFloat16(piece.tensor, element, step);
    uint64_t got = 0;
    const int64_t offset = piece.offset + at * width;
    SYNCOPATE_RETURN_IF_ERROR(weights_->ReadLive({offset, offset + width}, reinterpret_cast<char*>(&got)));
    wrong += got == wanted ? 0 : 1;
  }
  return wrong;
}

}  // namespace

absl::Status RunReceiverPeer(const PeerOptions& options, PeerDevice* device, EventSink* sink) {
  SYNCOPATE_ASSIGN_OR_RETURN(PeerPlan plan, MakePeerPlan(options));
  ReceiverPeer peer(options, std::move(plan), sink);
  SYNCOPATE_RETURN_IF_ERROR(peer.Join(device));
  return peer.Run(device);
}

}  // namespace syncopate::bench
