#include "services/config/rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/guess_tokens.h"
#include "base/host_port.h"
#include "base/identity.h"
#include "base/manifest.h"
#include "rollouter/environment/environment.h"
#include "rollouter/trajectory/stop_rules.h"
#include "services/config/data_files.h"
#include "services/config/duration.h"
#include "services/config/evaluation_sets.h"
#include "services/config/loss_options.h"
#include "services/config/reward_rules.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::config {
namespace {

constexpr int64_t kMaxBatchSamples = 1 << 20;  // rows of one training batch
constexpr int64_t kMaxGroupTokens = 4 << 20;   // a group travels in one message of at most 64 MiB
constexpr int64_t kHeartbeatsOfAStall = 3;     // one of these heartbeats may be late

// A name that Kubernetes allows for a pod, limited to one DNS label.
bool IsReplicaName(const std::string& name) {
  auto allowed = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; };
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), allowed);
}

bool IsPathComponent(const std::string& name) {
  auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 128 && name.front() != '.' && std::all_of(name.begin(), name.end(), allowed);
}

void CheckRun(const v1::RunSection& run, Rules* rules) {
  rules->Expect(IsPathComponent(run.name()), {"run.name"},
                "a name of letters, digits, '.', '_' and '-' that does not begin with '.', for it names a folder");
  rules->Expect(!run.resume() || !run.dir().empty(), {"run.resume", "run.dir"},
                "false, or run.dir to name the run to resume");
}

void CheckRanks(const v1::RunConfig& config, Rules* rules) {
  const v1::TrainerSection& trainer = config.trainer();
  rules->Expect(trainer.rank() < trainer.world(), {"trainer.rank", "trainer.world"},
                "a rank below trainer.world, or -1");
  rules->Expect(trainer.rank0().empty() || ParseHostPort(trainer.rank0()).ok(), {"trainer.rank0"}, "host:port");
  const v1::RollouterSection& rollouter = config.rollouter();
  const int64_t parallel = config.rollout().tensor_parallel();
  rules->Expect(rollouter.rank() < parallel, {"rollouter.rank", "rollout.tensor_parallel"},
                "a rank below rollout.tensor_parallel, or -1");
  rules->Expect(rollouter.rank0().empty() || ParseHostPort(rollouter.rank0()).ok(), {"rollouter.rank0"}, "host:port");
  // Powers of two divide the heads and widths of models evenly.
  rules->Expect((parallel & (parallel - 1)) == 0, {"rollout.tensor_parallel"}, "1, 2, 4 or 8");
}

void CheckRollouterName(const std::string& name, Rules* rules) {
  rules->Expect(name.empty() || IsReplicaName(name), {"rollouter.name"}, "1 to 63 of a-z, 0-9 and '-', or nothing");
  // Files in the run directory have the rollouter's name.
  rules->Expect(IsRollouterName(name), {"rollouter.name"},
                "another name: that one is taken by a daemon of another role");
}

struct Listener {
  std::string key;
  std::string address;
  std::string advertise_key;  // "" if the address is told to no other process
  std::string advertise;
  bool anywhere = false;  // may bind any address: only tells whether the daemon is well, and takes no command
};

std::vector<Listener> Listeners(const v1::RunConfig& config) {
  const auto& synchronizer = config.synchronizer();
  std::string listen = synchronizer.listen().empty() ? synchronizer.address() : synchronizer.listen();
  std::string listen_key = synchronizer.listen().empty() ? "synchronizer.address" : "synchronizer.listen";
  std::vector<Listener> listeners = {
      {listen_key, listen, "", ""},
      {"trainer.listen", config.trainer().listen(), "trainer.advertise", config.trainer().advertise()},
      {"rollouter.listen", config.rollouter().listen(), "rollouter.advertise", config.rollouter().advertise()},
      {"rollouter.ranks_listen", config.rollouter().ranks_listen(), "", ""},
      {"metrics.synchronizer_listen", config.metrics().synchronizer_listen(), "", ""},
      {"metrics.trainer_listen", config.metrics().trainer_listen(), "", ""},
      {"metrics.rollouter_listen", config.metrics().rollouter_listen(), "", ""}};
  const std::pair<const char*, std::string> health[] = {
      {"synchronizer.health_listen", synchronizer.health_listen()},
      {"trainer.health_listen", config.trainer().health_listen()},
      {"rollouter.health_listen", config.rollouter().health_listen()}};
  if (!config.trainer().ranks_listen().empty()) {
    listeners.push_back({"trainer.ranks_listen", config.trainer().ranks_listen(), "", ""});
  }
  if (!config.endpoint().listen().empty()) {
    // CheckEndpoint says which addresses it may have.
    listeners.push_back({"endpoint.listen", config.endpoint().listen(), "", "", /*anywhere=*/true});
  }
  for (const auto& [key, address] : health) {
    if (!address.empty()) listeners.push_back({key, address, "", "", /*anywhere=*/true});
  }
  return listeners;
}

bool HasTls(const v1::SecuritySection& security) {
  return !security.tls_cert().empty() && !security.tls_key().empty() && !security.tls_ca().empty();
}

void CheckSecurity(const v1::SecuritySection& security, Rules* rules) {
  const bool no_tls = security.tls_cert().empty() && security.tls_key().empty() && security.tls_ca().empty();
  rules->ExpectTogether(no_tls || HasTls(security), {"security.tls_cert", "security.tls_key", "security.tls_ca"},
                        "all three files, or none of them");
  rules->Expect(CheckedDuration(security.tls_reload()) >= absl::Seconds(1), {"security.tls_reload"}, "at least 1s");
  const std::string& domain = security.trust_domain();
  auto allowed = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '-'; };
  rules->Expect(!domain.empty() && domain.size() <= 253 && std::all_of(domain.begin(), domain.end(), allowed),
                {"security.trust_domain"}, "a name of lower-case letters, digits, '.' and '-'");
}

void CheckListener(const Listener& listener, bool any_address, Rules* rules) {
  auto parsed = ParseHostPort(listener.address);
  if (!parsed.ok()) {
    rules->Expect(false, {listener.key}, "host:port, such as 127.0.0.1:7070");
    return;
  }
  rules->Expect(any_address || listener.anywhere || parsed->IsLoopback(), {listener.key, "run.insecure_bind"},
                "a loopback address, as connections are not encrypted; run.insecure_bind=true allows others");
  bool told = !listener.advertise_key.empty();
  rules->Expect(!told || !parsed->IsWildcard() || !listener.advertise.empty(), {listener.key, listener.advertise_key},
                absl::StrCat("an address that others can dial, or ", listener.advertise_key, " to name one"));
  rules->Expect(!told || listener.advertise.empty() || ParseHostPort(listener.advertise).ok(), {listener.advertise_key},
                "host:port, such as 10.0.0.7:7071, or nothing");
}

void CheckAddresses(const v1::RunConfig& config, Rules* rules) {
  // If the synchronizer also listens at this address, CheckListener reports a malformed one.
  rules->Expect(config.synchronizer().listen().empty() || ParseHostPort(config.synchronizer().address()).ok(),
                {"synchronizer.address"}, "host:port, such as 127.0.0.1:7070");
  std::map<std::string, std::string> taken;  // from address to key
  for (const Listener& listener : Listeners(config)) {
    CheckListener(listener, config.run().insecure_bind() || HasTls(config.security()), rules);
    auto parsed = ParseHostPort(listener.address);
    if (!parsed.ok() || parsed->port == 0) continue;
    auto [first, added] = taken.emplace(listener.address, listener.key);
    rules->Expect(added, {listener.key, first->second},
                  absl::StrCat("an address that ", first->second, " does not use"));
  }
}

// The endpoint has no TLS, and knows its callers by tokens.
void CheckEndpoint(const v1::RunConfig& config, Rules* rules) {
  const v1::EndpointSection& endpoint = config.endpoint();
  const int64_t most = config.rollout().max_sequences() - config.rollout().samples();
  rules->Expect(endpoint.sequences() == 0 || endpoint.sequences() <= most,
                {"endpoint.sequences", "rollout.max_sequences", "rollout.samples"},
                absl::StrCat("at most ", most, ", so that a group of the run has room"));
  rules->Expect(endpoint.sequences() == 0 || config.rollout().max_groups_in_flight() == 0,
                {"endpoint.sequences", "rollout.max_groups_in_flight"}, "0 with rollout.max_groups_in_flight");
  const auto place = ParseHostPort(endpoint.listen());
  if (!place.ok()) return;
  const bool has_tokens = !config.security().token_file().empty();
  rules->Expect(place->IsLoopback() || (has_tokens && config.run().insecure_bind()),
                {"endpoint.listen", "run.insecure_bind", "security.token_file"},
                "a loopback address, as connections are not encrypted; run.insecure_bind=true and a "
                "security.token_file allow others");
  rules->Expect(has_tokens || config.security().tls_ca().empty(), {"endpoint.listen", "security.token_file"},
                "a security.token_file beside TLS, as callers of the endpoint show tokens");
}

void CheckModel(const v1::ModelSection& model, Rules* rules) {
  if (!model.path().empty()) return;  // its config.json is checked when it is read
  rules->Expect(model.num_attention_heads() % model.num_key_value_heads() == 0,
                {"model.num_key_value_heads", "model.num_attention_heads"},
                absl::StrCat("a divisor of num_attention_heads ", model.num_attention_heads()));
  rules->Expect(model.head_dim() % 2 == 0, {"model.head_dim"}, "an even number, as rotary positions turn pairs");
  rules->Expect(model.context_length() == 0, {"model.context_length", "model.path"},
                "0, as without model.path it is model.max_position_embeddings that says it");
}

// That the projections exist is checked when they are read, as is what a directory of adapters says.
void CheckLora(const v1::LoraSection& lora, Rules* rules) {
  const bool by_path = !lora.path().empty();
  rules->Expect(!by_path || lora.rank() == 0, {"lora.rank", "lora.path"}, "0, as lora.path says it");
  const bool may_tell = lora.rank() > 0;
  const std::string why = by_path ? ", as lora.path says it" : ", as lora.rank is 0: all weights are trained";
  rules->Expect(may_tell || lora.alpha() == 0, {"lora.alpha", "lora.rank", "lora.path"}, absl::StrCat("0", why));
  rules->Expect(may_tell || lora.target_modules() == "all-linear", {"lora.target_modules", "lora.rank", "lora.path"},
                absl::StrCat("all-linear", why));
  rules->Expect(may_tell || lora.scaling() == "alpha_over_rank", {"lora.scaling", "lora.rank", "lora.path"},
                absl::StrCat("alpha_over_rank", why));
}

bool IsDevice(const std::string& text) {
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  const std::string number = absl::StartsWith(text, "cuda:") ? text.substr(5) : "";
  return !number.empty() && number.size() <= 3 && std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
}

void CheckDevices(const v1::RunConfig& config, Rules* rules) {
  const std::string& train = config.train().device();
  const std::string& rollout = config.rollout().device();
  const char* expected = "auto, cpu, cuda, or cuda:N such as cuda:0";
  rules->Expect(IsDevice(train), {"train.device"}, expected);
  rules->Expect(IsDevice(rollout), {"rollout.device"}, expected);
  rules->Expect(config.rollout().tensor_parallel() == 1 || !absl::StartsWith(rollout, "cuda:"),
                {"rollout.device", "rollout.tensor_parallel"},
                "cuda, auto or cpu, as each rank needs a GPU of its own");
  const std::string& transport = config.sync().transport();
  const bool between_gpus = synchronizer::NeedsGpus(transport);
  rules->Expect(!between_gpus || (train != "cpu" && rollout != "cpu"),
                {"sync.transport", "train.device", "rollout.device"},
                absl::StrCat("auto or grpc, as ", transport, " goes from GPU to GPU and ",
                             train == "cpu" ? "train.device" : "rollout.device", " is cpu"));
  const std::string& install = config.sync().install();
  rules->Expect(install != "swap" || !absl::StartsWith(rollout, "cuda"), {"sync.install", "rollout.device"},
                "auto, remap, borrowed or in_place, as swap is for rollouters on the CPU");
  rules->Expect(install != "remap" || rollout != "cpu", {"sync.install", "rollout.device"},
                "auto, swap, borrowed or in_place, as remap is for rollouters on a GPU");
  rules->Expect(install != "borrowed" || config.rollout().tensor_parallel() == 1,
                {"sync.install", "rollout.tensor_parallel"},
                "auto or in_place, as only a rollouter of one rank borrows memory for the new weights");
}

void CheckTurns(const v1::RunConfig& config, Rules* rules) {
  if (!config.run().share_gpu()) return;
  rules->Expect(config.sync().transport() != "nccl", {"sync.transport", "run.share_gpu"},
                "auto, ipc or grpc, as NCCL does not connect two processes on one device");
  rules->Expect(config.sync().install() != "borrowed", {"sync.install", "run.share_gpu"},
                "auto with run.share_gpu, as a rollouter that takes turns has one weight set anyway");
  rules->Expect(config.train().objective() != "sft", {"run.share_gpu", "train.objective"},
                "false with train.objective sft, which has no rollouters to share with");
}

bool IsJsonObject(const std::string& text) {
  return text.empty() || nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false).is_object();
}

void CheckFiles(const v1::RunConfig& config, Rules* rules) {
  const auto& data = config.data();
  for (const auto& [key, list] : {std::pair("data.files", &data.files()), {"data.eval_files", &data.eval_files()}}) {
    const auto files = ParseDataFiles(*list);
    rules->Expect(files.ok(), {key}, files.ok() ? "" : std::string(files.status().message()));
  }
  rules->Expect(data.files().empty() || !config.model().path().empty(), {"data.files", "model.path"},
                "empty, or model.path a model directory, whose tokenizer makes tokens of text");
  rules->Expect(data.eval_files().empty() || !data.files().empty(), {"data.eval_files", "data.files"},
                "empty, or data.files files to train on: a built-in task makes prompts to evaluate by itself");
  rules->Expect(IsJsonObject(data.chat_arguments()), {"data.chat_arguments"},
                "a JSON object, such as {\"enable_thinking\": false}, or nothing");
}

void CheckEvaluation(const v1::RunConfig& config, Rules* rules) {
  rules->Expect(!config.eval().only() || config.train().objective() != "sft", {"eval.only", "train.objective"},
                "false with train.objective sft, which has no rollouters to answer");
  const auto sets = ParseEvaluationSets(config.eval().sets());
  rules->Expect(sets.ok(), {"eval.sets"}, sets.ok() ? "" : std::string(sets.status().message()));
  if (!sets.ok() || sets->empty()) return;
  rules->Expect(!config.data().files().empty(), {"eval.sets", "data.files"},
                "nothing without data.files, as the prompts of sets are texts");
  rules->Expect(config.train().objective() != "sft", {"eval.sets", "train.objective"},
                "nothing with train.objective sft, which has no rollouters to answer");
  for (const EvaluationSetText& set : *sets) {
    if (!set.reward.empty()) CheckSetReward(set.name, set.reward, config, rules);
  }
}

void CheckStop(const v1::RunConfig& config, Rules* rules) {
  const auto stop = rollouter::ParseStopRules(config.rollout().stop());
  rules->Expect(stop.ok(), {"rollout.stop"}, stop.ok() ? "" : std::string(stop.status().message()));
  if (!stop.ok()) return;
  rules->Expect(stop->texts.empty() || !config.data().files().empty(), {"rollout.stop", "data.files"},
                "token ids alone, as answers to a built-in task have no text");
}

void CheckData(const v1::RunConfig& config, Rules* rules) {
  // Without this check, lengths that do not fit together would fail only after minutes, at the first long answer.
  TaskShape shape = GetShape(config.data());
  const auto& model = config.model();
  const auto& rollout = config.rollout();
  const int64_t longest_answer = LongestAnswer(config);
  const std::string answer_key = Plays(config) ? "rollout.max_total_tokens" : "rollout.max_new_tokens";
  int64_t longest = shape.prompt_tokens + longest_answer;
  const std::string reach = absl::StrCat("at least ", longest, ": a prompt of ", shape.prompt_tokens, " tokens and ",
                                         longest_answer, " new ones");
  if (model.path().empty()) {
    rules->Expect(model.vocab_size() == 0 || model.vocab_size() >= shape.vocabulary,
                  {"model.vocab_size", "data.alphabet", "data.task"},
                  absl::StrCat("0 or at least the ", shape.vocabulary, " tokens of the task"));
    rules->Expect(longest <= model.max_position_embeddings(),
                  {"model.max_position_embeddings", "data.length", "data.max_prompt_tokens", answer_key, "data.task"},
                  reach);
  } else {
    rules->Expect(model.context_length() == 0 || longest <= model.context_length(),
                  {"model.context_length", "data.length", "data.max_prompt_tokens", answer_key, "data.task"},
                  absl::StrCat("0, or ", reach));
  }
  rules->Expect(rollout.max_new_tokens() >= shape.answer_tokens, {"rollout.max_new_tokens", "data.length", "data.task"},
                absl::StrCat("at least ", shape.answer_tokens, ", the tokens of a right answer"));
  rules->Expect(config.train().micro_batch_tokens() >= longest,
                {"train.micro_batch_tokens", "data.length", "data.max_prompt_tokens", answer_key},
                absl::StrCat("at least ", longest, ", one prompt and its answer"));
  int64_t batch_samples = config.data().batch_groups() * rollout.samples();
  rules->ExpectTogether(batch_samples <= kMaxBatchSamples, {"data.batch_groups", "rollout.samples"},
                        absl::StrCat("batch_groups x samples of at most ", kMaxBatchSamples, ", not ", batch_samples));
  rules->ExpectTogether(
      longest_answer <= kMaxGroupTokens / rollout.samples(), {answer_key, "rollout.samples"},
      absl::StrCat("samples x ", answer_key, " of at most ", kMaxGroupTokens, ", so that a group fits a message"));
}

void CheckPlay(const v1::RunConfig& config, Rules* rules) {
  const v1::EnvironmentSection& environment = config.environment();
  const std::string& name = environment.name();
  const v1::RolloutSection& rollout = config.rollout();
  const bool has_worker = !environment.address().empty() || !environment.command().empty();
  if (config.data().files().empty()) {
    // The built-in tasks have no text, and only this one is played.
    rules->Expect(name.empty() || name == "guess", {"environment.name", "data.files"},
                  "empty, or guess, or data.files to name some: other environments have no tokens without a tokenizer");
    if (!name.empty() && name != "guess") return;
    rules->Expect((config.data().task() == "guess") == Plays(config), {"environment.name", "data.task", "data.files"},
                  "guess with data.task guess and without data.files, and empty otherwise");
  } else {
    const rollouter::EnvironmentRegistry built_in = rollouter::EnvironmentRegistry::BuiltIn();
    rules->Expect(name.empty() || has_worker || built_in.Find(name).ok(),
                  {"environment.name", "environment.command", "environment.address"},
                  absl::StrCat("empty, ", absl::StrJoin(built_in.Names(), ", "),
                               ", or an environment of the worker that environment.command starts"));
  }
  if (!Plays(config)) return;
  rules->Expect(rollout.max_total_tokens() >= rollout.max_new_tokens(),
                {"rollout.max_total_tokens", "rollout.max_new_tokens", "environment.name"},
                absl::StrCat("at least rollout.max_new_tokens ", rollout.max_new_tokens(), ", the tokens of one turn"));
  rules->Expect(
      !has_worker || CheckedDuration(config.reward().timeout()) < CheckedDuration(config.data().lease_timeout()),
      {"reward.timeout", "data.lease_timeout"},
      absl::StrCat("less than data.lease_timeout ", config.data().lease_timeout(),
                   ", as a lease waits for the environment"));
}

void CheckLeases(const v1::RunConfig& config, Rules* rules) {
  const absl::Duration stall = CheckedDuration(config.data().lease_stall());
  rules->Expect(stall >= kHeartbeatsOfAStall * CheckedDuration(config.sync().heartbeat()),
                {"data.lease_stall", "sync.heartbeat"},
                absl::StrCat("at least ", kHeartbeatsOfAStall, " x sync.heartbeat ", config.sync().heartbeat(),
                             ", with which rollouters say how they come along"));
  rules->Expect(stall <= CheckedDuration(config.data().lease_timeout()), {"data.lease_timeout", "data.lease_stall"},
                absl::StrCat("at least data.lease_stall ", config.data().lease_stall()));
}

void CheckTrain(const v1::RunConfig& config, Rules* rules) {
  const v1::TrainSection& train = config.train();
  rules->Expect(train.max_grad_growth() == 0 || train.max_grad_growth() > 1, {"train.max_grad_growth"},
                "0, or more than 1, so that gradients can grow");
  const int64_t end = train.schedule_updates() > 0 ? train.schedule_updates() : MakeUpdates(config);
  const bool own_rate = train.sft_learning_rate() > 0;  // the warm-up is then part of the supervised steps
  rules->Expect(!own_rate || train.sft_steps() > 0, {"train.sft_learning_rate", "train.sft_steps"},
                "0, as the run begins without supervised steps: train.sft_steps is 0");
  rules->Expect(!own_rate || train.sft_steps() == 0 || train.warmup_updates() < train.sft_steps(),
                {"train.warmup_updates", "train.sft_steps", "train.sft_learning_rate"},
                absl::StrCat("fewer than train.sft_steps ", train.sft_steps(), ", which have train.sft_learning_rate"));
  rules->Expect(own_rate || train.schedule() == "constant" || train.warmup_updates() < end,
                {"train.warmup_updates", "train.schedule_updates", "run.steps", "train.schedule"},
                absl::StrCat("fewer than the ", end, " updates at which the schedule ends"));
}

// Checks that state which may leave the device exists at all.
void CheckMemory(const v1::RunConfig& config, Rules* rules) {
  const v1::TrainSection& train = config.train();
  const bool has_reference = train.kl_coef() > 0;
  rules->Expect(!train.offload_reference() || has_reference, {"train.offload_reference", "train.kl_coef"},
                "false, as without train.kl_coef there is no reference policy");
  rules->Expect(!train.offload_reference() || !HasAdapters(config),
                {"train.offload_reference", "lora.rank", "lora.path"},
                "false, as the reference policy of adapters is their base, of which there is no copy");
  const bool has_proximal_pass = train.updates_per_batch() > 1 && MakeLossOptions(config).needs_proximal();
  rules->Expect(!train.offload_optimizer_for_logprob() || has_reference || has_proximal_pass,
                {"train.offload_optimizer_for_logprob", "train.updates_per_batch", "train.proximal", "train.kl_coef"},
                "false, as no step has a log-probability pass: that needs train.kl_coef, or several "
                "train.updates_per_batch with train.proximal=recompute");
}

// Checks the keys of supervised steps, which train on the answers of the data.
void CheckSupervised(const v1::RunConfig& config, Rules* rules) {
  const v1::TrainSection& train = config.train();
  const bool alone = train.objective() == "sft";
  rules->Expect(!alone || train.sft_steps() == 0, {"train.sft_steps", "train.objective"},
                "0, as with objective sft every step is supervised, run.steps of them");
  rules->Expect(alone || train.sft_steps() == 0 || train.sft_steps() < config.run().steps(),
                {"train.sft_steps", "run.steps"},
                absl::StrCat("fewer than run.steps ", config.run().steps(),
                             ", for the steps after them learn from rewards; train.objective=sft has none of those"));
  const bool supervised = alone || train.sft_steps() > 0;
  rules->Expect(!alone || train.kl_coef() == 0, {"train.kl_coef", "train.objective"},
                "0, as with objective sft no step has a divergence from a reference policy");
  const std::string& response = config.data().response_field();
  rules->Expect(response.empty() || supervised, {"data.response_field", "train.sft_steps", "train.objective"},
                "empty, as no step of this run is supervised: train.sft_steps is 0 and train.objective rl");
  rules->Expect(response.empty() || !config.data().files().empty(), {"data.response_field", "data.files"},
                "empty, or data.files files to train on: a built-in task knows its answers");
}

// Reports what the loss itself refuses, with the loss's messages.
void CheckLoss(const v1::RunConfig& config, Rules* rules) {
  rules->Expect(loss::ParseRewardWeights(config.train().reward_weights()).ok(), {"train.reward_weights"},
                "parts and their weights, as in accuracy=1,format=0.5, each part once");
  for (const loss::LossProblem& problem : MakeLossOptions(config).FindProblems()) {
    std::vector<std::string> keys;
    for (const std::string& key : problem.keys) {
      keys.push_back(absl::StrContains(key, '.') ? key : absl::StrCat("train.", key));
    }
    rules->Expect(false, std::move(keys), problem.expected);
  }
}

void CheckRollout(const v1::RunConfig& config, Rules* rules) {
  const auto& rollout = config.rollout();
  rules->Expect(
      rollout.samples() >= 2 || !MakeLossOptions(config).advantage.compares_samples(),
      {"rollout.samples", "train.advantage"},
      absl::StrCat("at least 2, as ", config.train().advantage(), " compares the answers of a group with each other"));
  rules->Expect(rollout.top_p() == 1, {"rollout.top_p"},
                "1, as training needs log-probabilities of the whole distribution");
  rules->Expect(rollout.top_k() == 0, {"rollout.top_k"},
                "0, as training needs log-probabilities of the whole distribution");
  rules->Expect(rollout.samples() <= rollout.max_sequences(), {"rollout.max_sequences", "rollout.samples"},
                absl::StrCat("at least rollout.samples ", rollout.samples(), ", for a group is decoded together"));
}

void CheckStaleness(const v1::RunConfig& config, Rules* rules) {
  const auto& staleness = config.staleness();
  double target = staleness.target_staleness();
  rules->Expect(target == -1 || (target >= 0 && target <= static_cast<double>(staleness.max_staleness())),
                {"staleness.target_staleness", "staleness.max_staleness"},
                absl::StrCat("-1, or a number from 0 to max_staleness ", staleness.max_staleness()));
  rules->Expect(config.sync().every_steps() - 1 <= staleness.max_staleness(),
                {"sync.every_steps", "staleness.max_staleness"},
                absl::StrCat("at most max_staleness + 1 = ", staleness.max_staleness() + 1,
                             ", or the newest version is too stale to train on and the run can never go on"));
}

void CheckSync(const v1::SyncSection& sync, Rules* rules) {
  rules->Expect(sync.bucket_bytes() % Manifest::kAlignment == 0, {"sync.bucket_bytes"},
                absl::StrCat("a multiple of ", Manifest::kAlignment));
  absl::Duration heartbeat = CheckedDuration(sync.heartbeat());
  absl::Duration suspect = CheckedDuration(sync.suspect_after());
  rules->Expect(heartbeat < suspect, {"sync.suspect_after", "sync.heartbeat"},
                absl::StrCat("longer than sync.heartbeat ", sync.heartbeat()));
  rules->Expect(suspect < CheckedDuration(sync.dead_after()), {"sync.dead_after", "sync.suspect_after"},
                absl::StrCat("longer than sync.suspect_after ", sync.suspect_after()));
  rules->Expect(CheckedDuration(sync.prepare_deadline()) < CheckedDuration(sync.deadline()),
                {"sync.prepare_deadline", "sync.deadline"},
                absl::StrCat("shorter than sync.deadline ", sync.deadline()));
  rules->Expect(CheckedDuration(sync.give_up_after()) >= CheckedDuration(sync.deadline()),
                {"sync.give_up_after", "sync.deadline"},
                absl::StrCat("at least sync.deadline ", sync.deadline(), ", for one attempt may take as long"));
}

}  // namespace

bool IsModelShapeKey(const std::string& path) {
  return absl::StartsWith(path, "model.") && path != "model.path" && path != "model.context_length" &&
         path != "model.dtype" && path != "model.tool_format";
}

TaskShape GetShape(const v1::DataSection& data) {
  constexpr int64_t kSpecialTokens = 3;  // BOS, SEP, EOS
  if (!data.files().empty()) return {data.max_prompt_tokens(), 1, 0};
  if (data.task() == "guess") {
    return {guess_tokens::kPromptTokens, guess_tokens::kTurnTokens, guess_tokens::kVocabulary};
  }
  int64_t length = data.length();
  // Prompt: BOS, the digits of two numbers, SEP. Answer: the sum, which has one digit more, and EOS.
  if (data.task() == "add") return {2 * length + 2, length + 2, 10 + kSpecialTokens};
  // Prompt: BOS x1..xL SEP. Answer: L symbols and EOS.
  return {length + 2, length + 1, data.alphabet() + kSpecialTokens};
}

bool Plays(const v1::RunConfig& config) { return !config.environment().name().empty(); }

int64_t LongestAnswer(const v1::RunConfig& config) {
  return Plays(config) ? config.rollout().max_total_tokens() : config.rollout().max_new_tokens();
}

// The learning rate's schedule ends at this number. Steps and updates come from a file, so no product may overflow.
int64_t MakeUpdates(const v1::RunConfig& config) {
  const int64_t each = config.train().updates_per_batch();
  const int64_t steps = config.run().steps();
  if (config.train().objective() == "sft") return steps;
  const int64_t supervised = std::min(config.train().sft_steps(), steps);  // one update each
  return supervised + std::min(steps - supervised, std::numeric_limits<int64_t>::max() / each - supervised) * each;
}

bool HasAdapters(const v1::RunConfig& config) { return config.lora().rank() > 0 || !config.lora().path().empty(); }

int64_t GetRollouters(const v1::RunConfig& config) {
  return config.train().objective() == "sft" ? 0 : config.run().rollouters();
}

std::vector<BrokenRule> CheckRules(const v1::RunConfig& config) {
  Rules rules;
  CheckRun(config.run(), &rules);
  CheckAddresses(config, &rules);
  CheckRanks(config, &rules);
  CheckEndpoint(config, &rules);
  CheckRollouterName(config.rollouter().name(), &rules);
  CheckSecurity(config.security(), &rules);
  CheckModel(config.model(), &rules);
  CheckLora(config.lora(), &rules);
  CheckDevices(config, &rules);
  CheckTurns(config, &rules);
  CheckFiles(config, &rules);
  CheckStop(config, &rules);
  CheckEvaluation(config, &rules);
  CheckData(config, &rules);
  CheckPlay(config, &rules);
  CheckLeases(config, &rules);
  CheckReward(config, &rules);
  CheckEnvironment(config, &rules);
  CheckTrain(config, &rules);
  CheckMemory(config, &rules);
  CheckSupervised(config, &rules);
  CheckLoss(config, &rules);
  CheckRollout(config, &rules);
  CheckStaleness(config, &rules);
  CheckSync(config.sync(), &rules);
  rules.Expect(config.eval().show_samples() <= config.eval().prompts(), {"eval.show_samples", "eval.prompts"},
               absl::StrCat("at most eval.prompts ", config.eval().prompts()));
  return rules.TakeBroken();
}

}  // namespace syncopate::config
