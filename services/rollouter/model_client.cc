#include "services/rollouter/model_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "base/sha256.h"
#include "base/status.h"
#include "services/member/member_client.h"
#include "services/rpc/channel.h"
#include "services/rpc/timer.h"
#include "services/wire/codec.h"
#include "services/wire/model_codec.h"
#include "syncopate/v1/trainer.grpc.pb.h"

namespace syncopate::rollouterd {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(60);
constexpr absl::Duration kPresent = absl::Minutes(2);  // more than the trainer waits for a rollouter to connect
constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kLeaveGrace = absl::Seconds(1);
// A large tokenizer has tens of megabytes; a longer file is no description of a model.
constexpr int64_t kMaxFileBytes = 128 << 20;
constexpr int kMaxFiles = 16;
constexpr char kTokenizerFile[] = "tokenizer.json";

absl::Status BadAnswer(const std::string& text) {
  return Error(absl::StatusCode::kDataLoss, "BAD_MODEL_ANSWER",
               absl::StrCat("what the trainer says of the model cannot be: ", text));
}

// Assembles an answer from its messages.
class ModelAnswer {
 public:
  absl::Status Add(const v1::GetModelResponse& message) {
    if (message.has_model()) {
      if (described_) return BadAnswer("it comes twice");
      described_ = true;
      description_ = message.model();
      if (description_.files_size() > kMaxFiles) return BadAnswer("too many files");
      contents_.resize(static_cast<size_t>(description_.files_size()));
      return absl::OkStatus();
    }
    const v1::GetModelResponse::FileChunk& chunk = message.chunk();
    if (chunk.file() < 0 || chunk.file() >= static_cast<int>(contents_.size())) return BadAnswer("an unknown file");
    std::string& contents = contents_[static_cast<size_t>(chunk.file())];
    // Checked before memory grows: the peer may send more than it announced.
    const int64_t most = std::min(kMaxFileBytes, description_.files(chunk.file()).bytes());
    if (chunk.offset() != static_cast<int64_t>(contents.size()) ||
        chunk.offset() + static_cast<int64_t>(chunk.data().size()) > most) {
      return BadAnswer("a part of a file is out of its place");
    }
    contents += chunk.data();
    return absl::OkStatus();
  }

  // Whether all that the description announces has come.
  bool IsComplete() const {
    for (size_t i = 0; i < contents_.size(); ++i) {
      if (static_cast<int64_t>(contents_[i].size()) < description_.files(static_cast<int>(i)).bytes()) return false;
    }
    return described_;
  }

  absl::StatusOr<LearnedModel> Finish() {
    if (!described_) return BadAnswer("there is no description");
    LearnedModel model;
    model.run_id = description_.run_id();
    SYNCOPATE_ASSIGN_OR_RETURN(model.shape, wire::FromProto(description_.shape()));
    if (description_.dtype() != v1::DTYPE_FLOAT32 && description_.dtype() != v1::DTYPE_BFLOAT16) {
      return BadAnswer("weights have no dtype that travels");
    }
    model.dtype = description_.dtype() == v1::DTYPE_FLOAT32 ? DType::kFloat32 : DType::kBFloat16;
    model.bucket_bytes = description_.bucket_bytes();
    // Both sides compute the layout of the weights; a difference is found here, before anything is generated.
    SYNCOPATE_ASSIGN_OR_RETURN(const Manifest manifest,
                               model::MakeWireManifest(model.shape, model.dtype, model.bucket_bytes));
    if (manifest.fingerprint() != description_.manifest_fingerprint()) {
      return BadAnswer("another manifest follows from it here; are both sides of one version?");
    }
    for (const int32_t id : description_.end_token_ids()) {
      if (id < 0 || id >= model.shape.vocab_size) {
        return BadAnswer(absl::StrCat("the end token ", id, " is outside the vocabulary of ", model.shape.vocab_size));
      }
      model.end_token_ids.push_back(id);
    }
    for (size_t i = 0; i < contents_.size(); ++i) {
      const v1::ModelFile& file = description_.files(static_cast<int>(i));
      if (Sha256Hex(contents_[i]) != file.sha256()) return BadAnswer("a file has another SHA-256 than is said");
      model.files[file.name()] = std::move(contents_[i]);
    }
    if (auto found = model.files.find(kTokenizerFile); found != model.files.end()) {
      SYNCOPATE_ASSIGN_OR_RETURN(model.tokenizer, text::tokenizer::Tokenizer::Parse(found->second));
    }
    return model;
  }

 private:
  bool described_ = false;
  v1::ModelDescription description_;
  std::vector<std::string> contents_;
};

// One call of GetModel, which its destructor cancels. Cancel() alone is thread-safe.
class ModelCall {
 public:
  ModelCall(std::shared_ptr<grpc::Channel> channel, absl::Duration limit, const v1::GetModelRequest& request)
      : stub_(v1::TrainerService::NewStub(std::move(channel))) {
    context_.set_deadline(rpc::CallDeadline(limit));
    stream_ = stub_->GetModel(&context_, request);
  }
  ~ModelCall() {
    // Without this the end would wait for the rest of the stream.
    Cancel();
    if (!finished_) stream_->Finish();
  }
  ModelCall(const ModelCall&) = delete;
  ModelCall& operator=(const ModelCall&) = delete;

  bool Read(v1::GetModelResponse* message) { return stream_->Read(message); }
  absl::Status Finish() {
    finished_ = true;
    return rpc::FromGrpc(stream_->Finish());
  }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::TrainerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GetModelResponse>> stream_;
  bool finished_ = false;
};

// The synchronizer sends no commands to a member without a model; a command is refused all the same.
class NoParticipant final : public member::SyncParticipant {
 public:
  synchronizer::SyncReport Prepare(const synchronizer::Prepare&) override { return Refusal(); }
  void Transfer(const synchronizer::Transfer&, Done done) override { done(Refusal()); }
  synchronizer::SyncReport Install(const synchronizer::Install&) override { return Refusal(); }
  void Finish(int64_t) override {}
  void FinishAll() override {}

 private:
  static synchronizer::SyncReport Refusal() {
    synchronizer::SyncReport report;
    report.status = Error(absl::StatusCode::kFailedPrecondition, "NO_MODEL_YET", "this rollouter asks for its model");
    return report;
  }
};

// The trainer's address, and whether the synchronizer has refused this member.
class Whereabouts {
 public:
  void Set(const synchronizer::Directory& directory) {
    MutexLock lock(&mutex_);
    directory_ = directory;
  }
  void SetRefused(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (refused_.ok()) refused_ = why;
  }
  absl::StatusOr<synchronizer::Directory> directory() const {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(refused_);
    return directory_;
  }

 private:
  mutable Mutex mutex_;
  synchronizer::Directory directory_ ABSL_GUARDED_BY(mutex_);
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<LearnedModel> AskUntilAnswered(const LearnModelOptions& options, const Whereabouts& whereabouts) {
  v1::GetModelRequest request;
  if (!options.cards.empty()) {
    *request.mutable_member() = wire::ToProto(options.member);
    request.mutable_cards()->Assign(options.cards.begin(), options.cards.end());
  }
  absl::Status last;
  while (!options.stop_requested(kPoll)) {
    SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Directory directory, whereabouts.directory());
    if (directory.completed && options.exit_on_completion) break;
    const std::string& trainer = directory.trainer_address;
    if (trainer.empty()) continue;
    auto model = GetModel(trainer, options.security, Clock::Real()->Now() + kCallTimeout, request);
    if (model.ok()) return model;
    // The trainer is starting, or credentials are being renewed. Any other error is a mistake that waiting does not
    // correct.
    const bool again = absl::IsUnavailable(model.status()) || absl::IsDeadlineExceeded(model.status()) ||
                       absl::IsCancelled(model.status()) || absl::IsUnauthenticated(model.status()) ||
                       absl::IsPermissionDenied(model.status());
    if (!again) return Annotate(model.status(), absl::StrCat("the model of the trainer at ", trainer));
    if (model.status() != last) {
      SYNCOPATE_LOG(kInfo, "the trainer at %s has not said what the model is: %s", trainer, model.status().message());
    }
    last = model.status();
  }
  return Error(absl::StatusCode::kCancelled, "STOPPED",
               "there was nothing left to do before the trainer had said what the model is");
}

}  // namespace

absl::StatusOr<LearnedModel> GetModel(const std::string& address,
                                      const std::shared_ptr<const auth::TransportSecurity>& security,
                                      absl::Time deadline, const v1::GetModelRequest& request) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(address, {.security = security, .peer_role = "trainer"}));
  const bool stays_open = request.cards_size() > 0;
  const absl::Duration left = deadline - Clock::Real()->Now();
  const auto call = std::make_shared<ModelCall>(std::move(channel), stays_open ? left + kPresent : left, request);
  // The answer has the caller's deadline; the call itself may go on.
  rpc::Timer patience;
  if (stays_open) patience.Set(left, [call] { call->Cancel(); });
  ModelAnswer answer;
  v1::GetModelResponse message;
  absl::Status added;
  while (added.ok() && !(stays_open && answer.IsComplete()) && call->Read(&message)) added = answer.Add(message);
  patience.Cancel();
  SYNCOPATE_RETURN_IF_ERROR(added);
  if (!stays_open || !answer.IsComplete()) SYNCOPATE_RETURN_IF_ERROR(call->Finish());
  SYNCOPATE_ASSIGN_OR_RETURN(LearnedModel model, answer.Finish());
  if (stays_open) model.presence = call;
  return model;
}

absl::Status RenameMismatch(const absl::Status& why) {
  const std::string reason = ErrorReason(why);
  if (reason != reason::kModelMismatch && reason != reason::kDtypeMismatch) return why;
  return Error(why.code(), "MODEL_CHANGED", why.message());
}

absl::StatusOr<LearnedModel> LearnModel(const LearnModelOptions& options) {
  Whereabouts whereabouts;
  NoParticipant participant;
  member::MemberClient::Options member;
  member.synchronizer_address = options.synchronizer_address;
  member.security = options.security;
  member.hello.member = options.member;
  member.hello.run_id = options.run_id;
  member.hello.metrics_address = options.metrics_address;
  member.hello.build = options.build;
  member.secret = options.secret;
  member.lost_after = options.lost_after;
  member.on_refused = [&whereabouts](const absl::Status& why) { whereabouts.SetRefused(why); };
  SYNCOPATE_ASSIGN_OR_RETURN(auto client, member::MemberClient::Start(std::move(member), &participant));
  client->SetDirectoryListener(
      [&whereabouts](const synchronizer::Directory& directory) { whereabouts.Set(directory); });
  absl::StatusOr<LearnedModel> model = AskUntilAnswered(options, whereabouts);
  // The hello named no manifest, and a member cannot change its hello.
  client->Leave("it joins again with its model");
  client->Stop(kLeaveGrace);
  return model;
}

}  // namespace syncopate::rollouterd
