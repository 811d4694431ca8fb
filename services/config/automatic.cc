#include "services/config/automatic.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/hf_config.h"
#include "services/config/config_record.h"
#include "services/config/field_value.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"

namespace syncopate::config {
namespace {

constexpr double kTaskLearningRate = 2e-3;
constexpr double kModelLearningRate = 1e-6;
constexpr double kAdapterLearningRate = 1e-5;   // adapters want about ten times the rate of all weights
constexpr double kDoubtfulLearningRate = 1e-4;  // above it most trained models unlearn
constexpr int64_t kModelNewTokens = 1024;

// Made once: making a schema takes as long as reading a file with it.
const std::vector<ConfigKey>& AutomaticKeys() {
  static const auto* const keys = [] {
    auto* automatic = new std::vector<ConfigKey>;
    const ConfigSchema schema;
    for (const ConfigKey& key : schema.keys()) {
      if (key.IsAutomatic()) automatic->push_back(key);
    }
    return automatic;
  }();
  return *keys;
}

bool IsOpen(const ConfigKey& key, const v1::RunConfig& config) {
  const std::string value = GetValue(key, config);
  return value == "0" || value == "\"\"";
}

// The resumed run's value, or the former default if the run's files lack the key.
void Keep(const std::map<std::string, std::string>& kept, const ConfigKey& key, v1::RunConfig* config) {
  auto value = kept.find(key.path);
  if (value != kept.end() && SetValue(key, value->second, config)) return;
  SetValue(key, key.option.former_default(), config);
}

int64_t NewTokens(const Surroundings& around, const v1::RunConfig& config) {
  const TaskShape task = GetShape(config.data());
  if (config.model().path().empty()) return task.answer_tokens;
  const int64_t said = config.model().context_length();
  const int64_t context = said > 0 ? said : around.longest_context;
  if (context == 0) return kModelNewTokens;
  // The rules, or the model, report a context that has no room for an answer.
  return std::clamp<int64_t>(context - task.prompt_tokens, 1, kModelNewTokens);
}

// The number of GPUs for all processes of a run; "auto" counts as a GPU.
struct Needs {
  int64_t trainer = 0;
  int64_t rollouters = 0;
};

Needs CountNeeds(const v1::RunConfig& config) {
  return {config.train().device() == "cpu" ? 0 : config.trainer().world(),
          config.rollout().device() == "cpu" ? 0 : GetRollouters(config) * config.rollout().tensor_parallel()};
}

BrokenRule TooFewGpus(const Needs& needs, int64_t gpus) {
  return {{"train.device", "rollout.device", "run.rollouters", "rollout.tensor_parallel", "trainer.world"},
          absl::StrCat("as many GPUs as processes where a device is auto: ", needs.trainer, " for the trainer and ",
                       needs.rollouters, " for rollouters, and this machine has ", gpus,
                       gpus > needs.trainer ? "; set run.rollouters to fewer" : "",
                       "; or name the devices: train.device=cuda:0 rollout.device=cuda:0 rollout.gpu_memory=0.5 to "
                       "share one GPU, or cpu for either"),
          /*together=*/true};
}

std::optional<BrokenRule> ResolveDevices(int64_t gpus, v1::RunConfig* config) {
  std::string* const train = config->mutable_train()->mutable_device();
  std::string* const rollout = config->mutable_rollout()->mutable_device();
  if (*train != "auto" && *rollout != "auto") return std::nullopt;
  const Needs needs = CountNeeds(*config);
  // Processes that take turns need one GPU for a rank of the trainer and a rank of a rollouter.
  const int64_t together =
      config->run().share_gpu() ? std::max(needs.trainer, needs.rollouters) : needs.trainer + needs.rollouters;
  if (gpus > 0 && together > gpus) return TooFewGpus(needs, gpus);
  for (std::string* const device : {train, rollout}) {
    if (*device == "auto") *device = gpus > 0 ? "cuda" : "cpu";
  }
  return std::nullopt;
}

}  // namespace

Resolved ResolveAutomatic(const Surroundings& around, v1::RunConfig* config) {
  Resolved resolved;
  for (const ConfigKey& key : AutomaticKeys()) {
    if (!IsOpen(key, *config)) continue;
    resolved.keys.push_back(key.path);
    if (around.kept.has_value()) Keep(*around.kept, key, config);
  }
  v1::TrainSection* const train = config->mutable_train();
  v1::RolloutSection* const rollout = config->mutable_rollout();
  const bool has_model = !config->model().path().empty();
  if (train->learning_rate() == 0) {
    train->set_learning_rate(!has_model             ? kTaskLearningRate
                             : HasAdapters(*config) ? kAdapterLearningRate
                                                    : kModelLearningRate);
  }
  if (rollout->max_new_tokens() == 0) rollout->set_max_new_tokens(NewTokens(around, *config));
  for (std::string* const device : {train->mutable_device(), rollout->mutable_device()}) {
    if (device->empty()) *device = has_model ? "auto" : "cpu";
  }
  if (around.gpus.has_value()) resolved.broken = ResolveDevices(*around.gpus, config);
  return resolved;
}

Surroundings LookAtFiles(FileSystem* files, const v1::RunConfig& config) {
  Surroundings around;
  const std::vector<ConfigKey>& keys = AutomaticKeys();
  const bool any_open =
      std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) { return IsOpen(key, config); });
  if (any_open && config.run().resume() && !config.run().dir().empty()) {
    around.kept = ReadKeptValues(files, config.run().dir());
  }
  if (config.rollout().max_new_tokens() == 0 && !config.model().path().empty()) {
    const absl::StatusOr<model::HfModel> model = model::ReadHfConfig(config.model().path());
    if (model.ok()) around.longest_context = model->longest_context();
  }
  return around;
}

std::vector<std::string> FindDoubts(const v1::RunConfig& config) {
  std::vector<std::string> doubts;
  if (!config.model().path().empty() && config.train().learning_rate() > kDoubtfulLearningRate) {
    doubts.push_back(absl::StrCat("train.learning_rate is ", config.train().learning_rate(),
                                  " beside a model.path: above ", kDoubtfulLearningRate,
                                  " a taught model mostly unlearns within a few steps; usual are 1e-6 to 1e-5"));
  }
  // While environments think, only what else is under way fills the slots. What is built in answers at once.
  const bool has_worker = !config.environment().command().empty() || !config.environment().address().empty();
  const auto at_most = static_cast<int64_t>(
      (TargetStaleness(config) + 1) * static_cast<double>(config.data().batch_groups() * config.rollout().samples()));
  const int64_t rollouters = GetRollouters(config);
  const int64_t room = rollouters * (config.rollout().max_sequences() + MaxParked(config));
  if (Plays(config) && has_worker && at_most < room) {
    doubts.push_back(absl::StrCat(
        "at most ", at_most, " samples are under way, and ",
        rollouters == 1 ? "a rollouter has" : absl::StrCat(rollouters, " rollouters have"), " room for ", room,
        ", those that wait for their environment counted: if environments take their time, slots stay empty. More "
        "data.batch_groups, rollout.samples or staleness.target_staleness fill them"));
  }
  return doubts;
}

}  // namespace syncopate::config
