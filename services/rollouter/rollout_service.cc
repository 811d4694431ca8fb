#include "services/rollouter/rollout_service.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rollouter/trajectory/group_assembly.h"
#include "services/wire/codec.h"

namespace syncopate::rollouterd {
namespace {

// The prefix separates these names from those that WorkClient gives its leases.
std::string EngineId(const std::string& request_id) { return absl::StrCat("user:", request_id); }

absl::Status BadRequest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message);
}

absl::Status NoActor(const char* what) {
  return Error(absl::StatusCode::kFailedPrecondition, "NO_ACTOR",
               absl::StrCat("a rollouter has no actor and ", what,
                            " no checkpoint: its weights come by weight sync. Ask the trainer instead"));
}

absl::Status Busy() { return Error(absl::StatusCode::kUnavailable, "BUSY", "too many control calls wait; try again"); }

int32_t Samples(const v1::GenerateRequest& request) { return std::max(1, request.n()); }

// Limits on a request, the same for every model. Each limited number is work per token, or memory per request, that a
// client could otherwise ask for without bound.
absl::Status CheckLimits(const v1::GenerateRequest& request) {
  const v1::SamplingParams& sampling = request.sampling();
  constexpr int kMost = RolloutService::kMaxStopTokens;
  int longest = 0;
  for (const v1::TokenSequence& stop : sampling.stop_sequences()) longest = std::max(longest, stop.tokens_size());
  if (sampling.stop_token_ids_size() > kMost || sampling.stop_sequences_size() > kMost || longest > kMost) {
    return BadRequest(absl::StrCat(sampling.stop_token_ids_size(), " stop tokens, ", sampling.stop_sequences_size(),
                                   " stop sequences, the longest of ", longest, " tokens; the limit of each is ",
                                   kMost));
  }
  if (sampling.top_logprobs() > RolloutService::kMaxTopLogProbs) {
    return BadRequest(
        absl::StrCat("top_logprobs is ", sampling.top_logprobs(), ", the limit is ", RolloutService::kMaxTopLogProbs));
  }
  if (request.n() < 0 || request.n() > RolloutService::kMaxSamples) {
    return BadRequest(absl::StrCat("n is ", request.n(), ", expected 0 to ", RolloutService::kMaxSamples));
  }
  if (!v1::Adapter_IsValid(request.adapter())) {
    return BadRequest(absl::StrCat("adapter is ", static_cast<int>(request.adapter()), ", expected POLICY or BASE"));
  }
  return absl::OkStatus();
}

const char* StateName(rollouter::EngineStatus::State state) {
  using State = rollouter::EngineStatus::State;
  switch (state) {
    case State::kWaitingForWeights:
      return "waiting_for_weights";
    case State::kRunning:
      return "running";
    case State::kPaused:
      return "paused";
    case State::kDraining:
      return "draining";
    case State::kDrained:
      return "drained";
    case State::kFailed:
      return "failed";
    case State::kAsleep:
      return "asleep";
  }
  return "unknown";
}

}  // namespace

class RolloutService::ActiveRequests final : public std::enable_shared_from_this<ActiveRequests> {
 public:
  explicit ActiveRequests(int64_t capacity) : capacity_(capacity) {}

  // Takes the name `id`, or makes a name if `id` is empty. The name is free again when the last copy of the result is
  // destroyed.
  absl::StatusOr<Name> Add(std::string id) {
    MutexLock lock(&mutex_);
    if (static_cast<int64_t>(ids_.size()) >= capacity_) {
      return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_REQUESTS",
                   absl::StrCat(capacity_, " requests run already; try again when one has ended"));
    }
    if (id.empty()) {
      // A client may have chosen such a name itself.
      do {
        id = absl::StrCat("request-", ++made_up_);
      } while (ids_.count(id) > 0);
    } else if (ids_.count(id) > 0) {
      return Error(absl::StatusCode::kAlreadyExists, "REQUEST_ID_IN_USE",
                   absl::StrCat("a request named '", id, "' runs already; choose another request_id"),
                   {{"request_id", id}});
    }
    ids_.insert(id);
    // The last owner of the pointer frees the name: the sink, when the engine has finished the request, however it
    // ended.
    return Name(new std::string(id), [self = shared_from_this()](const std::string* name) {
      self->Remove(*name);
      delete name;
    });
  }

 private:
  void Remove(const std::string& id) {
    MutexLock lock(&mutex_);
    ids_.erase(id);
  }

  const int64_t capacity_;
  Mutex mutex_;
  std::set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
  int64_t made_up_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Answers Generate when all samples have ended.
class RolloutService::UnarySink final : public rollouter::GenerationSink {
 public:
  UnarySink(Name name, int32_t samples, std::shared_ptr<rpc::UnaryCall> call, v1::GenerateResponse* response)
      : name_(std::move(name)), call_(std::move(call)), response_(response), left_(samples) {
    // Samples end in any order; each has a fixed place in the response.
    for (int32_t i = 1; i < samples; ++i) response_->add_more_samples();
  }

  void OnFinished(int32_t sample, Trajectory trajectory) override {
    // Broken weights show first as log-probabilities that are not finite; such an answer must not be reported as good.
    good_.Update(rollouter::CheckLogProbs(trajectory.logprobs));
    if (sample == 0) {
      Fill(trajectory, response_);
    } else {
      Fill(trajectory, response_->mutable_more_samples(sample - 1));
    }
    if (--left_ > 0) return;
    response_->set_request_id(*name_);
    name_.reset();  // before the client can send the same name again
    call_->Finish(good_);
  }

 private:
  template <typename Message>
  static void Fill(const Trajectory& trajectory, Message* message) {
    message->mutable_tokens()->Add(trajectory.tokens.begin(), trajectory.tokens.end());
    message->mutable_logprobs()->Add(trajectory.logprobs.begin(), trajectory.logprobs.end());
    for (const VersionSpan& span : trajectory.spans) *message->add_spans() = wire::ToProto(span);
    message->set_finish(wire::ToProto(trajectory.finish));
    for (const auto& top : trajectory.top_logprobs) *message->add_top_logprobs() = wire::ToProto(top);
  }

  Name name_;
  const std::shared_ptr<rpc::UnaryCall> call_;
  v1::GenerateResponse* const response_;  // owned by gRPC, valid until Finish
  // Used on the engine's thread:
  int32_t left_;
  absl::Status good_;
};

// Streams tokens as they are generated, one token late, because the last message of a sample also says how it ended.
class RolloutService::StreamSink final : public rollouter::GenerationSink {
 public:
  using Stream = rpc::ServerWriteStream<v1::GenerateStreamResponse>;
  StreamSink(Name name, int32_t samples, std::shared_ptr<Stream> stream)
      : name_(std::move(name)), stream_(std::move(stream)), pending_(static_cast<size_t>(samples)), left_(samples) {}

  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
               const std::vector<TokenLogProb>& top) override {
    if (good_.ok()) good_ = rollouter::CheckLogProbs(absl::MakeConstSpan(&logprob, 1));
    if (!good_.ok()) return false;
    auto& pending = pending_[sample];
    // The token before this one was not the sample's last, so it can be sent.
    if (pending.has_value()) stream_->Write(*std::move(pending));
    pending.emplace();  // NOLINT(bugprone-use-after-move): makes a new message
    pending->set_token(token);
    pending->set_logprob(logprob);
    *pending->mutable_version() = wire::ToProto(version);
    pending->set_sample(sample);
    if (!top.empty()) *pending->mutable_top_logprobs() = wire::ToProto(top);
    return true;
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    auto& pending = pending_[sample];
    if (pending.has_value()) {
      has_written_ = true;
      // The last token is sent together with how its sample ended.
      pending->set_finish(good_.ok() ? wire::ToProto(trajectory.finish) : v1::FINISH_REASON_ABORTED);
      stream_->Write(*std::move(pending));
    }
    if (--left_ > 0) return;
    name_.reset();
    // A stream that ends with OK and no message would look like an empty answer.
    const bool nothing = good_.ok() && !has_written_;
    stream_->Finish(
        nothing ? Error(absl::StatusCode::kAborted, "ABORTED", "the request was ended before its first token") : good_);
  }

 private:
  Name name_;
  const std::shared_ptr<Stream> stream_;
  // Used on the engine's thread:
  std::vector<std::optional<v1::GenerateStreamResponse>> pending_;  // by sample
  int32_t left_;
  bool has_written_ = false;
  absl::Status good_;  // after an error no further token is sent
};

RolloutService::RolloutService(Options options, rollouter::EngineLoop* engine)
    : options_(std::move(options)), engine_(engine), active_(std::make_shared<ActiveRequests>(options_.max_requests)) {}

RolloutService::~RolloutService() {
  sleeps_.Stop();
  drains_.Stop();
  control_.Stop();
}

absl::StatusOr<RolloutService::Admitted> RolloutService::Admit(const v1::GenerateRequest& request,
                                                               absl::Time deadline) {
  SYNCOPATE_RETURN_IF_ERROR(rpc::CheckRequestId(request.request_id()));
  SYNCOPATE_RETURN_IF_ERROR(CheckLimits(request));
  Admitted admitted;
  // After all other checks: a refused request takes no name.
  SYNCOPATE_ASSIGN_OR_RETURN(admitted.name, active_->Add(request.request_id()));
  admitted.request.id = EngineId(*admitted.name);
  admitted.request.prompt_ids.assign(request.prompt_ids().begin(), request.prompt_ids().end());
  admitted.request.sampling = wire::FromProto(request.sampling());
  admitted.request.priority = request.priority();
  admitted.request.deadline = deadline;
  admitted.request.by_base = request.adapter() == v1::ADAPTER_BASE;
  // The first sample is the one that a request for a single sample would get.
  admitted.request.seeds = {request.seed()};
  for (int32_t i = 1; i < request.n(); ++i) admitted.request.seeds.push_back(SampleSeed(request.seed(), i));
  return admitted;
}

void RolloutService::AbortLater(const std::string& engine_id) {
  // If too many tasks wait, the request runs to its end, and nothing reads its result.
  (void)control_.Post([this, engine_id] { engine_->Abort(engine_id); });
}

grpc::ServerUnaryReactor* RolloutService::Generate(grpc::CallbackServerContext* context,
                                                   const v1::GenerateRequest* request, v1::GenerateResponse* response) {
  absl::StatusOr<Admitted> admitted = Admit(*request, absl::FromChrono(context->deadline()));
  if (!admitted.ok()) return rpc::Reply(context, admitted.status());
  auto call = rpc::UnaryCall::Create();
  std::string engine_id = admitted->request.id;
  auto sink = std::make_shared<UnarySink>(std::move(admitted->name), Samples(*request), call, response);
  absl::Status submitted = engine_->Submit(std::move(admitted->request), std::move(sink));
  // Finish before Start is allowed: the call keeps the status.
  if (!submitted.ok()) call->Finish(submitted);
  return call->Start({.on_cancel = [this, engine_id] { AbortLater(engine_id); }});
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* RolloutService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateStreamRequest* request) {
  auto stream = StreamSink::Stream::Create(context, options_.stream);
  absl::StatusOr<Admitted> admitted = Admit(request->request(), absl::FromChrono(context->deadline()));
  std::string engine_id;
  if (admitted.ok()) {
    engine_id = admitted->request.id;
    auto sink = std::make_shared<StreamSink>(std::move(admitted->name), Samples(request->request()), stream);
    absl::Status submitted = engine_->Submit(std::move(admitted->request), std::move(sink));
    if (!submitted.ok()) stream->Finish(submitted);
  } else {
    stream->Finish(admitted.status());
  }
  return stream->Start({.on_done = [this, engine_id](const absl::Status& status) {
    if (!status.ok() && !engine_id.empty()) AbortLater(engine_id);
  }});
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* RolloutService::RunOnce(const char* method, const Request* request, Response* response,
                                                  Worker& worker,
                                                  std::type_identity_t<std::function<absl::Status(Response*)>> work) {
  return rpc::AnswerOnce(request_ids_, method, *request, response,
                         [&worker, &work](Response* answer, rpc::RequestIds::Done done) {
                           // Engine calls block for a decode step or longer; gRPC's threads must not block.
                           if (worker.Post([work = std::move(work), answer, done] { done(work(answer)); })) return;
                           done(Busy());
                         });
}

// Does not use RequestIds: request_id names the request to abort here, and a second Abort finds nothing.
grpc::ServerUnaryReactor* RolloutService::Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                                v1::AbortResponse* response) {
  if (absl::Status good = rpc::CheckRequestId(request->request_id()); !good.ok()) return rpc::Reply(context, good);
  auto call = rpc::UnaryCall::Create();
  std::string engine_id = request->request_id().empty() ? std::string() : EngineId(request->request_id());
  bool posted = control_.Post([this, engine_id, call, response] {
    response->set_aborted(engine_->Abort(engine_id));
    call->Finish(absl::OkStatus());
  });
  if (!posted) call->Finish(Busy());
  return call->Start({});
}

grpc::ServerUnaryReactor* RolloutService::Pause(grpc::CallbackServerContext*,
                                                const v1::RolloutServicePauseRequest* request,
                                                v1::RolloutServicePauseResponse* response) {
  return RunOnce("Pause", request, response, control_, [this](auto*) {
    if (options_.set_paused) options_.set_paused(true);  // first: leases that came after the pause would only wait
    engine_->Pause();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RolloutService::Resume(grpc::CallbackServerContext*,
                                                 const v1::RolloutServiceResumeRequest* request,
                                                 v1::RolloutServiceResumeResponse* response) {
  return RunOnce("Resume", request, response, control_, [this](auto*) {
    // The engine first: leases that arrive after draining has ended find it running.
    engine_->Resume();
    if (options_.set_draining) options_.set_draining(false);
    if (options_.set_paused) options_.set_paused(false);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RolloutService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                                v1::DrainResponse* response) {
  // A client without a deadline must not occupy the worker for ever.
  absl::Time deadline = std::min(absl::FromChrono(context->deadline()), absl::Now() + options_.max_drain);
  return RunOnce("Drain", request, response, drains_, [this, deadline](auto*) {
    // First, so that no lease arrives while the engine empties.
    if (options_.set_draining) options_.set_draining(true);
    return engine_->Drain(deadline - absl::Now());
  });
}

grpc::ServerUnaryReactor* RolloutService::Sleep(grpc::CallbackServerContext* context, const v1::SleepRequest* request,
                                                v1::SleepResponse* response) {
  const absl::Time deadline = std::min(absl::FromChrono(context->deadline()), absl::Now() + options_.max_sleep_wait);
  const int32_t level = request->level() == 0 ? 1 : request->level();
  return RunOnce("Sleep", request, response, sleeps_,
                 [this, level, deadline](v1::SleepResponse* answer) -> absl::Status {
                   SYNCOPATE_ASSIGN_OR_RETURN(const int64_t freed, engine_->Sleep(level, deadline - absl::Now()));
                   // After the sleep: a refused sleep must change nothing. Leases that arrive in between are handed
                   // back.
                   if (options_.set_asleep) options_.set_asleep(true);
                   answer->set_freed_bytes(freed);
                   return absl::OkStatus();
                 });
}

grpc::ServerUnaryReactor* RolloutService::WakeUp(grpc::CallbackServerContext*, const v1::WakeUpRequest* request,
                                                 v1::WakeUpResponse* response) {
  return RunOnce("WakeUp", request, response, sleeps_, [this](auto*) -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(engine_->WakeUp());
    const bool serves = !engine_->GetStatus().serving.IsNone();  // otherwise the next install ends the sleep
    if (options_.set_asleep && serves) options_.set_asleep(false);
    return absl::OkStatus();
  });
}

// A rollouter is always in rollout mode, so both switches return OK and change nothing: a caller that switches trainers
// and rollouters in the same loop needs no special case.
grpc::ServerUnaryReactor* RolloutService::RolloutMode(grpc::CallbackServerContext* context,
                                                      const v1::RolloutServiceRolloutModeRequest*,
                                                      v1::RolloutServiceRolloutModeResponse* response) {
  response->set_acted(false);
  return rpc::Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* RolloutService::TrainerMode(grpc::CallbackServerContext* context,
                                                      const v1::RolloutServiceTrainerModeRequest*,
                                                      v1::RolloutServiceTrainerModeResponse* response) {
  response->set_acted(false);
  return rpc::Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* RolloutService::LoadCheckpoint(grpc::CallbackServerContext* context,
                                                         const v1::LoadCheckpointRequest*,
                                                         v1::LoadCheckpointResponse*) {
  return rpc::Reply(context, NoActor("loads"));
}

grpc::ServerUnaryReactor* RolloutService::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                         const v1::RolloutServiceSaveCheckpointRequest*,
                                                         v1::RolloutServiceSaveCheckpointResponse*) {
  return rpc::Reply(context, NoActor("saves"));
}

grpc::ServerUnaryReactor* RolloutService::GetStatus(grpc::CallbackServerContext* context,
                                                    const v1::RolloutServiceGetStatusRequest*,
                                                    v1::RolloutServiceGetStatusResponse* response) {
  rollouter::EngineStatus status = engine_->GetStatus();
  *response->mutable_member() = wire::ToProto(options_.member);
  response->set_state(StateName(status.state));
  *response->mutable_serving() = wire::ToProto(status.serving);
  response->set_serving_digest(status.serving_digest);
  response->set_running_sequences(static_cast<int32_t>(status.running_sequences));
  response->set_waiting_sequences(static_cast<int32_t>(status.waiting_sequences));
  response->set_kv_usage(status.kv_usage);
  response->set_generated_tokens(status.generated_tokens);
  if (options_.groups_submitted) response->set_groups_submitted(options_.groups_submitted());
  response->set_installs(status.installs);
  response->set_busy_seconds(status.busy_seconds);
  response->set_idle_seconds(status.idle_seconds);
  return rpc::Reply(context, absl::OkStatus());
}

}  // namespace syncopate::rollouterd
