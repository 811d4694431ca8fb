#include "tools/ctl/verbs.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/text_table.h"
#include "base/console/words.h"
#include "base/status.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tools/ctl/answers.h"
#include "tools/ctl/policy_text.h"
#include "tools/records/step_record.h"

namespace syncopate::ctl {
namespace {

using v1::RolloutService, v1::SynchronizerService, v1::TrainerService;

constexpr char kSynchronizer[] = "synchronizer";
constexpr char kTrainer[] = "trainer";
constexpr char kRollouter[] = "rollouter";

// A new id for each call, so that a call that gRPC repeats is carried out once.
std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("ctl-%d-%08x%08x", ::getpid(), random(), random());
}

template <typename Service>
struct Connection {
  std::string name;  // the daemon's, for errors
  std::unique_ptr<typename Service::Stub> stub;
};

template <typename Service>
absl::StatusOr<Connection<Service>> ConnectTo(const CtlContext& context, const daemon::DaemonEndpoint& endpoint) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(endpoint.grpc, {.security = context.daemons.security,
                                                                            .peer_role = endpoint.role}));
  return Connection<Service>{absl::StrCat(endpoint.Name(), " at ", endpoint.grpc), Service::NewStub(channel)};
}

// Makes one unary call to the daemon at `endpoint`.
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Call(const CtlContext& context, const daemon::DaemonEndpoint& endpoint,
                              grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                              const Request& request) {
  SYNCOPATE_ASSIGN_OR_RETURN(Connection<Service> daemon, ConnectTo<Service>(context, endpoint));
  auto answer = rpc::CallUnary(daemon.stub.get(), method, request, context.daemons.timeout);
  if (!answer.ok()) return Annotate(answer.status(), daemon.name);
  return answer;
}

absl::StatusOr<daemon::DaemonEndpoint> Pick(const CtlContext& context, const std::string& who,
                                            const std::vector<std::string>& roles) {
  SYNCOPATE_ASSIGN_OR_RETURN(Daemons daemons, Daemons::Find(context.daemons));
  return daemons.Pick(who, roles);
}

template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> CallOne(const CtlContext& context, const std::string& role,
                                 grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                 const Request& request) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, "", {role}));
  return Call<Service>(context, endpoint, method, request);
}

void Print(const CtlContext& context, const google::protobuf::Message& answer, const std::string& text) {
  *context.out << (context.json ? ToJson(answer) + "\n" : text) << std::flush;
}

// Makes a mutating call whose response has no fields.
template <typename Service, typename Request, typename Response>
absl::Status Order(const CtlContext& context, const daemon::DaemonEndpoint& endpoint,
                   grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const std::string& done) {
  Request request;
  request.set_request_id(NewRequestId());
  SYNCOPATE_ASSIGN_OR_RETURN(Response answer, Call<Service>(context, endpoint, method, request));
  Print(context, answer, absl::StrCat(endpoint.Name(), " ", done, "\n"));
  return absl::OkStatus();
}

// One row of `ctl status`.
struct DaemonState {
  std::string state;
  std::string version;
  std::string detail;
  std::string json;
};

absl::StatusOr<DaemonState> Describe(const CtlContext& context, const daemon::DaemonEndpoint& endpoint) {
  if (endpoint.role == kSynchronizer) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto status,
                               Call<SynchronizerService>(context, endpoint, &SynchronizerService::Stub::GetStatus, {}));
    return DaemonState{"running", wire::VersionText(status.newest()), Summary(status), ToJson(status)};
  }
  if (endpoint.role == kTrainer) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto status,
                               Call<TrainerService>(context, endpoint, &TrainerService::Stub::GetStatus, {}));
    return DaemonState{status.state(), wire::VersionText(status.version()), Summary(status), ToJson(status)};
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto status,
                             Call<RolloutService>(context, endpoint, &RolloutService::Stub::GetStatus, {}));
  return DaemonState{status.state(), wire::VersionText(status.serving()), Summary(status), ToJson(status)};
}

// Reads a server stream to its end. Its end is no error; a break is.
template <typename Response>
absl::Status Read(const daemon::DaemonEndpoint& endpoint, std::unique_ptr<grpc::ClientReader<Response>> reader,
                  const std::function<void(const Response&)>& print) {
  Response response;
  while (reader->Read(&response)) print(response);
  return Annotate(rpc::FromGrpc(reader->Finish()), absl::StrCat(endpoint.Name(), " at ", endpoint.grpc));
}

v1::GenerateRequest MakeRequest(const GenerateArguments& arguments) {
  v1::GenerateRequest request;
  request.set_request_id(NewRequestId());
  request.mutable_prompt_ids()->Add(arguments.prompt_ids.begin(), arguments.prompt_ids.end());
  request.set_seed(arguments.seed);
  request.set_adapter(arguments.adapter == "base" ? v1::ADAPTER_BASE : v1::ADAPTER_POLICY);
  auto* sampling = request.mutable_sampling();
  sampling->set_temperature(static_cast<float>(arguments.temperature));
  sampling->set_top_p(static_cast<float>(arguments.top_p));
  sampling->set_top_k(arguments.top_k);
  sampling->set_max_new_tokens(arguments.max_new_tokens);
  sampling->mutable_stop_token_ids()->Add(arguments.stop_token_ids.begin(), arguments.stop_token_ids.end());
  return request;
}

// `reader` turns tokens into text; null: tokens are printed as numbers.
absl::Status StreamTokens(const CtlContext& context, const daemon::DaemonEndpoint& endpoint,
                          const GenerateArguments& arguments, text::tokenizer::TextStream* reader) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto daemon, ConnectTo<RolloutService>(context, endpoint));
  grpc::ClientContext call;
  call.set_deadline(rpc::CallDeadline(context.daemons.timeout));
  v1::GenerateStreamRequest request;
  *request.mutable_request() = MakeRequest(arguments);
  auto print = [&context, reader](const v1::GenerateStreamResponse& token) {
    Print(context, token,
          reader != nullptr
              ? reader->Add(token.token())
              : absl::StrFormat("%d  %.4f  %s\n", token.token(), token.logprob(), wire::VersionText(token.version())));
  };
  const absl::Status ended =
      Read<v1::GenerateStreamResponse>(endpoint, daemon.stub->GenerateStream(&call, request), print);
  if (reader != nullptr && !context.json) *context.out << reader->End() << "\n" << std::flush;
  return ended;
}

constexpr int32_t kTokensOfIds = 16;

// Turns a text into the ids of its prompt; the rest of the call is the same.
absl::StatusOr<GenerateArguments> WithPrompt(GenerateArguments arguments, const PolicyText& policy) {
  SYNCOPATE_ASSIGN_OR_RETURN(arguments.prompt_ids, policy.WritePrompt(arguments.text));
  if (arguments.stop_token_ids.empty()) arguments.stop_token_ids = policy.end_tokens();
  if (arguments.max_new_tokens == 0) arguments.max_new_tokens = policy.max_new_tokens();
  return arguments;
}

absl::Status GenerateText(const CtlContext& context, const daemon::DaemonEndpoint& endpoint,
                          const GenerateArguments& asked) {
  SYNCOPATE_ASSIGN_OR_RETURN(const PolicyText policy, PolicyText::Load(context.daemons, asked.model));
  SYNCOPATE_ASSIGN_OR_RETURN(const GenerateArguments arguments, WithPrompt(asked, policy));
  if (arguments.stream) {
    text::tokenizer::TextStream reader = policy.Stream();
    return StreamTokens(context, endpoint, arguments, &reader);
  }
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto answer, Call<RolloutService>(context, endpoint, &RolloutService::Stub::Generate, MakeRequest(arguments)));
  const std::string text = policy.Read({answer.tokens().begin(), answer.tokens().end()});
  auto json = nlohmann::ordered_json::parse(ToJson(answer), nullptr, /*allow_exceptions=*/false);
  json["text"] = text;
  *context.out << (context.json ? json.dump() : text) << "\n" << std::flush;
  return absl::OkStatus();
}

}  // namespace

int CtlExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  std::string reason = ErrorReason(status);
  // These are errors of the command line, which no daemon has seen, whatever their code.
  for (const char* ours : {"BAD_ADDRESS", "NO_SUCH_DAEMON", "WRONG_ROLE", "NO_RUN", "NO_ENDPOINT", "NO_TOKENIZER"}) {
    if (reason == ours) return 2;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 3;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return 4;
    default:
      return 1;
  }
}

absl::Status CtlStatus(const CtlContext& context) {
  SYNCOPATE_ASSIGN_OR_RETURN(Daemons daemons, Daemons::Find(context.daemons));
  TextTable table({{"DAEMON"}, {"STATE"}, {"VERSION"}, {"ADDRESS"}, {"DETAIL"}});
  nlohmann::json all = nlohmann::json::object();
  absl::Status first_error;
  for (const daemon::DaemonEndpoint& endpoint : daemons.all()) {
    // An unreachable daemon becomes a row of the answer, and an error only at the end, because the states of the other
    // daemons are useful then.
    auto state = Describe(context, endpoint);
    if (state.ok()) {
      table.AddRow({endpoint.Name(), state->state, state->version, endpoint.grpc, state->detail});
      all[endpoint.Name()] = nlohmann::json::parse(state->json, nullptr, /*allow_exceptions=*/false);
    } else {
      first_error.Update(state.status());
      table.AddRow({endpoint.Name(), "unreachable", "-", endpoint.grpc, std::string(state.status().message())});
      all[endpoint.Name()] = {{"error", std::string(state.status().message())}};
    }
  }
  *context.out << (context.json ? all.dump() + "\n" : table.ToString());
  return first_error;
}

absl::Status CtlVersions(const CtlContext& context) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto versions, CallOne<SynchronizerService>(context, kSynchronizer,
                                                                         &SynchronizerService::Stub::ListVersions, {}));
  Print(context, versions, ToTable(versions));
  return absl::OkStatus();
}

absl::Status CtlMembers(const CtlContext& context) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto members, CallOne<SynchronizerService>(context, kSynchronizer, &SynchronizerService::Stub::ListMembers, {}));
  Print(context, members, ToTable(members));
  return absl::OkStatus();
}

absl::Status CtlSyncs(const CtlContext& context, int32_t last, bool follow) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, "", {kSynchronizer}));
  SYNCOPATE_ASSIGN_OR_RETURN(auto daemon, ConnectTo<SynchronizerService>(context, endpoint));
  v1::WatchSyncsRequest request;
  request.set_last(last);
  request.set_follow(follow);
  if (!context.json) *context.out << SyncHeading();
  grpc::ClientContext call;
  // A call that follows ends with the run, so it has no deadline; keepalive finds a dead synchronizer.
  if (!follow) call.set_deadline(rpc::CallDeadline(context.daemons.timeout));
  auto print = [&context](const v1::WatchSyncsResponse& sync) {
    Print(context, sync.record(), SyncRow(sync.record()));
  };
  return Read<v1::WatchSyncsResponse>(endpoint, daemon.stub->WatchSyncs(&call, request), print);
}

absl::Status CtlWatch(const CtlContext& context, int32_t last) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, "", {kTrainer}));
  SYNCOPATE_ASSIGN_OR_RETURN(auto daemon, ConnectTo<TrainerService>(context, endpoint));
  v1::WatchStepsRequest request;
  request.set_last(last);
  grpc::ClientContext call;  // no deadline: it follows the run; keepalive finds a dead trainer
  auto print = [&context](const v1::WatchStepsResponse& step) {
    auto record = records::ParseStepRecord(step.metrics_json());
    bool readable = !context.json && record.ok();
    *context.out << (readable ? records::ToString(*record) : step.metrics_json()) << "\n" << std::flush;
  };
  return Read<v1::WatchStepsResponse>(endpoint, daemon.stub->WatchSteps(&call, request), print);
}

absl::Status CtlExplain(const CtlContext& context) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto status,
                             CallOne<TrainerService>(context, kTrainer, &TrainerService::Stub::GetStatus, {}));
  Print(context, status, ToText(status));
  return absl::OkStatus();
}

absl::Status CtlSize(const CtlContext& context) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto status,
                             CallOne<TrainerService>(context, kTrainer, &TrainerService::Stub::GetStatus, {}));
  if (!status.has_sizing() || !status.sizing().not_measured().empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_MEASURED",
                 status.has_sizing() ? status.sizing().not_measured() : "the trainer has not begun; try again shortly");
  }
  Print(context, status.sizing(), ToText(status.sizing()));
  return absl::OkStatus();
}

absl::Status CtlPause(const CtlContext& context, const std::string& who) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kTrainer, kRollouter}));
  if (endpoint.role == kTrainer) {
    return Order<TrainerService>(context, endpoint, &TrainerService::Stub::Pause, "is paused");
  }
  return Order<RolloutService>(context, endpoint, &RolloutService::Stub::Pause, "is paused");
}

absl::Status CtlResume(const CtlContext& context, const std::string& who) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kTrainer, kRollouter}));
  if (endpoint.role == kTrainer) {
    return Order<TrainerService>(context, endpoint, &TrainerService::Stub::Resume, "goes on");
  }
  return Order<RolloutService>(context, endpoint, &RolloutService::Stub::Resume, "goes on");
}

absl::Status CtlDrain(const CtlContext& context, const std::string& who) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kRollouter}));
  return Order<RolloutService>(context, endpoint, &RolloutService::Stub::Drain, "is drained");
}

absl::Status CtlSleep(const CtlContext& context, const std::string& who, int32_t level) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kRollouter}));
  v1::SleepRequest request;
  request.set_request_id(NewRequestId());
  request.set_level(level);
  SYNCOPATE_ASSIGN_OR_RETURN(auto answer,
                             Call<RolloutService>(context, endpoint, &RolloutService::Stub::Sleep, request));
  Print(context, answer, absl::StrCat(endpoint.Name(), " sleeps and gave ", answer.freed_bytes() >> 20, " MiB back\n"));
  return absl::OkStatus();
}

absl::Status CtlWake(const CtlContext& context, const std::string& who) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kRollouter}));
  return Order<RolloutService>(context, endpoint, &RolloutService::Stub::WakeUp, "is awake");
}

absl::Status CtlAbort(const CtlContext& context, const std::string& who, const std::string& request_id) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kRollouter}));
  v1::AbortRequest request;
  request.set_request_id(request_id);
  SYNCOPATE_ASSIGN_OR_RETURN(auto answer,
                             Call<RolloutService>(context, endpoint, &RolloutService::Stub::Abort, request));
  Print(context, answer, absl::StrCat(endpoint.Name(), " ended ", answer.aborted(), " sequence(s)\n"));
  return absl::OkStatus();
}

absl::Status CtlSync(const CtlContext& context) {
  v1::TriggerSyncRequest request;
  request.set_request_id(NewRequestId());
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto answer,
      CallOne<SynchronizerService>(context, kSynchronizer, &SynchronizerService::Stub::TriggerSync, request));
  Print(context, answer,
        absl::StrCat(wire::VersionText(answer.version()), " goes to ", answer.receivers(), " receiver(s)",
                     answer.checked() > 0 ? absl::StrCat("; ", answer.checked(), " digest their weights again") : "",
                     "\n"));
  return absl::OkStatus();
}

absl::Status CtlEvict(const CtlContext& context, const std::string& replica_id, int32_t rank,
                      const std::string& reason) {
  v1::EvictMemberRequest request;
  request.set_request_id(NewRequestId());
  request.set_replica_id(replica_id);
  request.set_rank(rank);
  request.set_reason(reason);
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto answer,
      CallOne<SynchronizerService>(context, kSynchronizer, &SynchronizerService::Stub::EvictMember, request));
  Print(context, answer, absl::StrCat(replica_id, " is evicted\n"));
  return absl::OkStatus();
}

absl::Status CtlCheckpoint(const CtlContext& context) {
  v1::TrainerServiceSaveCheckpointRequest request;
  request.set_request_id(NewRequestId());
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto answer, CallOne<TrainerService>(context, kTrainer, &TrainerService::Stub::SaveCheckpoint, request));
  Print(context, answer, absl::StrCat("saved checkpoint ", answer.name(), "\n"));
  return absl::OkStatus();
}

absl::Status CtlStop(const CtlContext& context) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, "", {kTrainer}));
  return Order<TrainerService>(context, endpoint, &TrainerService::Stub::Stop, "ends the run");
}

absl::Status CtlGenerate(const CtlContext& context, const std::string& who, const GenerateArguments& asked) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kRollouter}));
  if (!asked.text.empty()) return GenerateText(context, endpoint, asked);
  GenerateArguments arguments = asked;
  if (arguments.max_new_tokens == 0) arguments.max_new_tokens = kTokensOfIds;
  if (arguments.stream) return StreamTokens(context, endpoint, arguments, /*reader=*/nullptr);
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto answer, Call<RolloutService>(context, endpoint, &RolloutService::Stub::Generate, MakeRequest(arguments)));
  Print(context, answer, ToTable(answer));
  return absl::OkStatus();
}

absl::Status CtlMode(const CtlContext& context, const std::string& who, const std::string& mode) {
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::DaemonEndpoint endpoint, Pick(context, who, {kTrainer, kRollouter}));
  auto report = [&](const auto& answer) -> absl::Status {
    if (!answer.ok()) return answer.status();
    const char* done = answer->acted() ? " switched to " : " has nothing to switch to ";
    Print(context, *answer, absl::StrCat(endpoint.Name(), done, mode, " mode\n"));
    return absl::OkStatus();
  };
  if (endpoint.role == kTrainer && mode == "rollout") {
    return report(Call<TrainerService>(context, endpoint, &TrainerService::Stub::RolloutMode, {}));
  }
  if (endpoint.role == kTrainer) {
    return report(Call<TrainerService>(context, endpoint, &TrainerService::Stub::TrainerMode, {}));
  }
  if (mode == "rollout") {
    return report(Call<RolloutService>(context, endpoint, &RolloutService::Stub::RolloutMode, {}));
  }
  return report(Call<RolloutService>(context, endpoint, &RolloutService::Stub::TrainerMode, {}));
}

}  // namespace syncopate::ctl
