// syncopate-rollouter CONFIG [section.key=value ...]: generates, scores and submits trajectories until it is told to
// stop. Needs only the synchronizer's address; has no state that is lost when it dies.

#include <prometheus/collectable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/rank_slice.h"
#include "services/config/duration.h"
#include "services/config/model_options.h"
#include "services/config/play_options.h"
#include "services/config/ranks.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/daemon/daemon.h"
#include "services/endpoint/endpoint.h"
#include "services/rollouter/leading_rank.h"
#include "services/rollouter/model_client.h"
#include "services/rollouter/remote_scorers.h"
#include "services/rollouter/replica_follower.h"
#include "services/rollouter/rollout_node.h"
#include "services/telemetry/card_metrics.h"
#include "services/telemetry/rollout_metrics.h"
#include "text/template/chat_format.h"

namespace syncopate::rollouterd {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kLookAtCard = absl::Seconds(1);

// The model that the engine is made for, and the configuration completed with the trainer's description of its weights.
struct FoundModel {
  v1::RunConfig config;
  model::ModelConfig shape;
  bool learned = false;  // the trainer described it
  config::PlayText text;
  std::map<std::string, std::string> files = {};   // its contents by name
  std::shared_ptr<const void> presence = nullptr;  // see LearnedModel
};

// Its text as environments and the endpoint need it.
absl::StatusOr<config::PlayText> MakeText(const LearnedModel& model) {
  config::PlayText text{.tokenizer = model.tokenizer, .end_token_ids = model.end_token_ids};
  const auto find = [&model](const char* name) {
    const auto found = model.files.find(name);
    return found == model.files.end() ? std::string() : found->second;
  };
  auto format = text::chat::ChatFormat::Parse(find("tokenizer_config.json"), find("chat_template.jinja"));
  if (!format.ok() && ErrorReason(format.status()) != reason::kNoChatTemplate) return format.status();
  if (format.ok()) text.format = *std::move(format);
  return text;
}

// Publishes the node's metrics as soon as there is a node.
class NodeMetrics final : public prometheus::Collectable {
 public:
  void Set(std::shared_ptr<const prometheus::Collectable> metrics) {
    MutexLock lock(&mutex_);
    metrics_ = std::move(metrics);
  }
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::shared_ptr<const prometheus::Collectable> metrics;
    {
      MutexLock lock(&mutex_);
      metrics = metrics_;
    }
    return metrics == nullptr ? std::vector<prometheus::MetricFamily>() : metrics->Collect();
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const prometheus::Collectable> metrics_ ABSL_GUARDED_BY(mutex_);
};

LearnModelOptions MakeLearnOptions(daemon::Daemon& daemon, const std::string& metrics_address,
                                   const std::set<std::string>& cards) {
  LearnModelOptions options;
  options.synchronizer_address = daemon.config().synchronizer().address();
  options.security = daemon.security();
  options.member = daemon.Member();
  options.secret = daemon.secret();
  options.cards = cards;
  options.run_id = daemon.config().run().id();
  options.metrics_address = metrics_address;
  options.build = daemon::BuildVersion();
  options.lost_after = config::CheckedDuration(daemon.config().synchronizer().lost_after());
  options.exit_on_completion = daemon.exit_on_completion();
  options.stop_requested = [&daemon](absl::Duration wait) { return daemon.StopRequested(wait); };
  return options;
}

// Every process can build a model from keys; for a model from files, the trainer has the files and describes them. One
// that may share its devices, `cards`, asks in any case: the answer says that the devices are the rollouters'.
absl::StatusOr<FoundModel> FindModel(daemon::Daemon& daemon, const std::string& metrics_address,
                                     const std::set<std::string>& cards) {
  FoundModel found;
  found.config = daemon.config();
  if (found.config.model().path().empty() && cards.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(const config::RunModel model, config::FindRunModel(found.config));
    found.shape = model.shape;
    return found;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const LearnedModel model, LearnModel(MakeLearnOptions(daemon, metrics_address, cards)));
  found.shape = model.shape;
  found.learned = true;
  found.text.tokenizer = model.tokenizer;
  found.text.end_token_ids = model.end_token_ids;
  if (config::Plays(found.config) || !found.config.endpoint().listen().empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(found.text, MakeText(model));
  }
  found.files = model.files;
  found.presence = model.presence;
  found.config.mutable_model()->set_dtype(model.dtype == DType::kFloat32 ? "float32" : "bfloat16");
  found.config.mutable_sync()->set_bucket_bytes(model.bucket_bytes);
  return found;
}

// The devices that this process may share with a trainer (run.share_gpu); empty: none.
absl::StatusOr<std::set<std::string>> FindCards(const v1::RunConfig& config) {
  if (!config.run().share_gpu()) return std::set<std::string>();
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string card, FindRolloutCard(config));
  return std::set<std::string>{card};
}

// Waits, on rank 0, until the devices of all ranks are the rollouters'; from then on the replica counts as being
// there. A rank does not know the others' devices before they have come, and they need the model for that: so this
// asks for the model once more.
absl::Status AwaitRolloutersTurn(daemon::Daemon& daemon, const std::string& metrics_address,
                                 const std::set<std::string>& cards, const LeadingRank& replica, FoundModel* model) {
  LearnModelOptions options = MakeLearnOptions(daemon, metrics_address, cards);
  options.stop_requested = [&daemon, &replica](absl::Duration wait) {
    return daemon.StopRequested(wait) || !replica.lost().ok();
  };
  const absl::StatusOr<LearnedModel> again = LearnModel(options);
  SYNCOPATE_RETURN_IF_ERROR(replica.lost());
  SYNCOPATE_RETURN_IF_ERROR(again.status());
  model->presence = again->presence;
  if (!model->learned) return absl::OkStatus();  // a model by keys is compared when this rank joins the run
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest ours, config::MakeWireManifest(model->config, model->shape));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest theirs,
                             model::MakeWireManifest(again->shape, again->dtype, again->bucket_bytes));
  if (ours.fingerprint() == theirs.fingerprint()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "MODEL_CHANGED",
               "the trainer has another model than it had when the ranks of this replica came; they start again");
}

RolloutNode::Options NodeOptions(const daemon::Daemon& daemon, const FoundModel& model) {
  const v1::RunConfig& config = model.config;
  RolloutNode::Options options;
  options.engine = config::MakeEngineOptions(config, model.shape);
  options.member = daemon.Member();
  options.secret = daemon.secret();
  options.run_id = config.run().id();
  options.run_name = config.run().name();
  options.synchronizer_address = config.synchronizer().address();
  options.leases.max_groups = config::GroupsInFlight(config);
  options.leases.samples_per_group = static_cast<int32_t>(config.rollout().samples());
  options.leases.max_parked = config::MaxParked(config);
  options.report_tokens = config.data().partial_bytes() > 0 ? config.rollout().report_tokens() : 0;
  options.heartbeat = config::CheckedDuration(config.sync().heartbeat());
  options.build = daemon::BuildVersion();
  options.lost_after = config::CheckedDuration(config.synchronizer().lost_after());
  // One publication behind is always allowed: a weight sync is then under way.
  options.allowed_lag = std::max(config.staleness().max_staleness(), config.sync().every_steps());
  options.events = daemon.events();
  options.security = daemon.security();
  return options;
}

std::shared_ptr<telemetry::EndpointCollector> MakeEndpointCollector(std::shared_ptr<endpoint::RequestCounts> counts) {
  return std::make_shared<telemetry::EndpointCollector>([counts = std::move(counts)] {
    const endpoint::RequestCounts::Figures now = counts->GetFigures();
    using endpoint::RequestResult;
    const auto ended = [&now](RequestResult result) { return now.ended[static_cast<size_t>(result)]; };
    const auto& bounds = endpoint::RequestCounts::kFirstTokenBounds;
    return telemetry::EndpointFigures{
        .answered = ended(RequestResult::kOk),
        .refused = ended(RequestResult::kRefused),
        .busy = ended(RequestResult::kBusy),
        .failed = ended(RequestResult::kFailed),
        .left = ended(RequestResult::kLeft),
        .under_way = now.under_way,
        .prompt_tokens = now.prompt_tokens,
        .completion_tokens = now.completion_tokens,
        .time_to_first_token = {.bounds = {bounds.begin(), bounds.end()},
                                .counts = {now.first_token.begin(), now.first_token.end()},
                                .sum = now.first_token_seconds}};
  });
}

// How the model writes calls of tools: as model.tool_format says, or its chat template.
text::chat::ToolFormat FindToolFormat(const FoundModel& model) {
  if (const auto named = text::chat::NamedToolFormat(model.config.model().tool_format())) return *named;
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
    const auto found = model.files.find(name);
    if (found == model.files.end()) continue;
    const auto format = text::chat::FindToolFormat(found->second);
    if (format != text::chat::ToolFormat::kNone) return format;
  }
  return text::chat::ToolFormat::kNone;
}

// Null if the run has no endpoint.
absl::StatusOr<std::unique_ptr<endpoint::Endpoint>> StartEndpoint(const daemon::Daemon& daemon, const FoundModel& model,
                                                                  std::shared_ptr<endpoint::RequestCounts> counts,
                                                                  rollouter::EngineLoop* engine) {
  const v1::RunConfig& config = model.config;
  if (config.endpoint().listen().empty()) return nullptr;
  endpoint::Endpoint::Options options;
  options.address = config.endpoint().listen();
  options.max_streams = config.endpoint().max_streams();
  options.model.name = config.run().name();
  options.model.tokenizer = model.text.tokenizer;
  if (model.text.format.has_value()) {
    options.model.chat = std::make_shared<const text::chat::ChatFormat>(*model.text.format);
  }
  options.counts = std::move(counts);
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
    const auto found = model.files.find(name);
    if (found != model.files.end()) endpoint::LearnFormats(found->second, &options.model);
  }
  options.model.tools = FindToolFormat(model);
  options.model.end_token_ids = model.text.end_token_ids;
  options.model.context = model.shape.max_position_embeddings;
  if (const auto security = daemon.security(); security != nullptr) {
    options.judge = [security](const std::string& authorization) { return security->JudgeEndpoint(authorization); };
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto endpoint, endpoint::Endpoint::Start(std::move(options), engine));
  SYNCOPATE_LOG(kInfo, "OpenAI's clients are answered at %s, model %s", endpoint->url(), config.run().name());
  return endpoint;
}

// Where others reach the endpoint: an endpoint on all addresses is at the daemon's own host. "" without one.
std::string EndpointAddress(const endpoint::Endpoint* endpoint, const std::string& daemon_address) {
  if (endpoint == nullptr) return "";
  HostPort place = endpoint->address();
  const auto daemon = ParseHostPort(daemon_address);
  if (place.IsWildcard() && daemon.ok()) place.host = daemon->host;
  return place.ToString();
}

// Returns when the process is asked to stop, when the node cannot go on, or, with the flag, when the run is complete.
// `account`: of the GPU, which `card` shows; null: there is none. `presence` is freed when the trainer has a stream.
void AwaitEnd(daemon::Daemon& daemon, RolloutNode& node, std::shared_ptr<const void> presence,
              const daemon::CardAccount* account, telemetry::CardCollector* card) {
  absl::Time next_look = absl::InfinitePast();
  while (!daemon.StopRequested(kPoll) && node.CheckAlive().ok()) {
    if (node.Moves()) daemon.health().Moved();
    daemon.health().SetReady(node.CheckReady());
    if (node.work().counters().streams > 0) presence = nullptr;
    if (const absl::Time now = Clock::Real()->Now(); account != nullptr && now >= next_look) {
      next_look = now + kLookAtCard;
      card->Update(*account, ListOwnParts(node.engine().GetStatus()));
    }
    if (daemon.exit_on_completion() && node.run_completed()) return;
  }
}

// Runs one rank, which is the only one, leads the others, or follows rank 0.
absl::Status RunRollouter(daemon::Daemon& daemon) {
  const v1::RunConfig& config = daemon.config();
  SYNCOPATE_ASSIGN_OR_RETURN(const int32_t rank, config::GetRolloutRank(config));
  const absl::Duration grace = config::CheckedDuration(config.run().grace());
  // Probes are answered while this process waits for the trainer.
  const auto node_metrics = std::make_shared<NodeMetrics>();
  const auto endpoint_counts = std::make_shared<endpoint::RequestCounts>();
  const auto card_metrics = std::make_shared<telemetry::CardCollector>();
  SYNCOPATE_ASSIGN_OR_RETURN(std::string metrics_address,
                             daemon.StartMetrics(config.metrics().rollouter_listen(),
                                                 {node_metrics, MakeEndpointCollector(endpoint_counts), card_metrics}));
  SYNCOPATE_ASSIGN_OR_RETURN(std::set<std::string> cards, FindCards(config));
  const auto world = static_cast<int32_t>(config.rollout().tensor_parallel());
  // Rank 0 of several ranks asks for all of them, when it knows their devices.
  SYNCOPATE_ASSIGN_OR_RETURN(FoundModel model,
                             FindModel(daemon, metrics_address, world == 1 ? cards : std::set<std::string>()));
  SYNCOPATE_RETURN_IF_ERROR(rollouter::CheckTensorParallel(model.shape, world));
  if (rank > 0) return FollowReplica(&daemon, model.config, model.shape, rank);
  std::unique_ptr<LeadingRank> replica;  // must outlive the node
  if (world > 1) {
    SYNCOPATE_ASSIGN_OR_RETURN(replica, LeadingRank::Gather(&daemon, model.config, model.shape));
    if (!cards.empty()) {
      cards.merge(replica->cards());
      SYNCOPATE_RETURN_IF_ERROR(AwaitRolloutersTurn(daemon, metrics_address, cards, *replica, &model));
    }
    SYNCOPATE_RETURN_IF_ERROR(replica->Connect());
  }
  RolloutNode::Options options = NodeOptions(daemon, model);
  SYNCOPATE_ASSIGN_OR_RETURN(options.device, OpenRolloutDevice(model.config, model.shape, daemon.security(),
                                                               replica != nullptr ? &replica->part() : nullptr));
  if (replica != nullptr) {
    options.layout = config::MakeRolloutLayout(model.config, model.shape);
    options.leader = replica->leader();
    options.device->backend = rollouter::MakeLeadingBackend(options.device->backend, options.leader);
  }
  options.cards = cards;
  const std::shared_ptr<const RolloutDevice> device = options.device;
  SYNCOPATE_ASSIGN_OR_RETURN(const auto scorers, RemoteScorers::Start(model.config));
  SYNCOPATE_ASSIGN_OR_RETURN(options.stops, rollouter::MakeStopRules(model.config.rollout().stop(),
                                                                     model.text.tokenizer, model.shape.vocab_size));
  SYNCOPATE_ASSIGN_OR_RETURN(options.play, config::MakePlayOptions(model.config, model.text));
  if (options.play.has_value()) {
    options.play->remote = scorers->environment();
    options.play->tool_format = FindToolFormat(model);
  }
  options.scoring = scorers->ScorerOptions(model.config, text::tokenizer::MakeTextDecoder(model.text.tokenizer));
  SYNCOPATE_ASSIGN_OR_RETURN(auto node, RolloutNode::Create(options, *daemon.registry()));
  if (device->card != nullptr) {
    daemon::EndMeasurement(device->card.get(), daemon::SumOwners(ListOwnParts(node->engine().GetStatus())));
  }
  // Before the node is freed: what an environment says, and that its worker has gone, reaches engine and scorer.
  absl::Cleanup stop_scorers = [&scorers] { scorers->Stop(); };
  node_metrics->Set(node->metrics());
  SYNCOPATE_ASSIGN_OR_RETURN(auto server, daemon.StartServer(config.rollouter().listen(), {node->service()},
                                                             {v1::RolloutService::service_full_name()}));
  const std::string address =
      config.rollouter().advertise().empty() ? server->address() : config.rollouter().advertise();
  // Before joining: members are told where it is.
  SYNCOPATE_ASSIGN_OR_RETURN(const auto endpoint, StartEndpoint(daemon, model, endpoint_counts, &node->engine()));
  SYNCOPATE_RETURN_IF_ERROR(node->Join(address, metrics_address, EndpointAddress(endpoint.get(), address)));
  SYNCOPATE_RETURN_IF_ERROR(daemon.Announce(server->address()));

  AwaitEnd(daemon, *node, std::move(model.presence), device->card.get(), card_metrics.get());
  const absl::Status alive = node->CheckAlive();
  const absl::Status why = model.learned ? RenameMismatch(alive) : alive;
  daemon.BeginStop(why.ok() ? "the run is complete" : std::string(why.message()), why);
  if (endpoint != nullptr) endpoint->Stop();
  // What damaged weights generate is not worth finishing.
  node->Leave(ErrorReason(alive) == reason::kWeightsDamaged ? absl::ZeroDuration() : grace);
  if (replica != nullptr) replica->Stop(why);  // after the last kernel launch
  server->Stop(absl::ZeroDuration());
  return why;
}

}  // namespace
}  // namespace syncopate::rollouterd

int main(int argc, char** argv) {
  return syncopate::daemon::DaemonMain(argc, argv, "rollouter", syncopate::rollouterd::RunRollouter);
}
