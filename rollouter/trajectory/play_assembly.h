#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rollouter/engine/generation.h"
#include "rollouter/environment/environment.h"
#include "rollouter/environment/remote_environment.h"
#include "rollouter/trajectory/episode.h"
#include "rollouter/trajectory/group_assembly.h"
#include "rollouter/trajectory/turn_format.h"
#include "text/template/tool_calls.h"

namespace syncopate::rollouter {

// How the samples of every lease play with an environment.
struct PlayRules {
  std::string environment = {};                // of a row that names none
  std::map<std::string, MakeGame> games = {};  // that are built in, by name
  RemoteEnvironment* remote = nullptr;  // borrowed; what it has goes before what is built in. Null: there is none
  Episode::Options episode = {};
  // The text of what the policy wrote in a turn. Pure.
  std::function<std::string(const std::vector<int32_t>& turn)> decode = nullptr;
  // The tokens of what the environment says to `turn`, the tokens of a turn; to its reset if that is empty. Reward and
  // end are not its business. Pure.
  std::function<absl::StatusOr<EnvironmentAnswer>(const EnvironmentMessage& said, const std::vector<int32_t>& turn)>
      encode = nullptr;
  // How the model writes calls of the tools that a row has; kNone: they stay text.
  text::chat::ToolFormat tool_format = text::chat::ToolFormat::kNone;
};

// Returns the rules of the environment `name` with the tokens of the built-in task of that name. NOT_FOUND (reason
// UNKNOWN_ENVIRONMENT) if there is none.
absl::StatusOr<PlayRules> MakePlayRules(const std::string& name, const Episode::Options& episode);
// Returns the rules of the environment `name`, built in or not, whose texts are tokens of `tokenizer` in the form that
// `format` gives them. INVALID_ARGUMENT for bad options.
absl::StatusOr<PlayRules> MakeTextPlayRules(const std::string& name, const Episode::Options& episode,
                                            std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer,
                                            std::shared_ptr<const TurnFormat> format);

// Where an environment is played.
struct PlayPlace {
  std::string environment = {};
  bool remote = false;
};
// Returns the environment that the task's row names in the field "environment", or else rules.environment.
std::string GetEnvironmentName(const PlayRules& rules, const Task& task);
// Returns where the samples of `task` play: at the worker if that has the environment, else with the game that is built in.
// Errors of RemoteEnvironment::Availability; NOT_FOUND (reason NO_SUCH_ENVIRONMENT) if there is neither.
absl::StatusOr<PlayPlace> FindPlace(const PlayRules& rules, const Task& task);

// Returns the tools of the task's row, a list in OpenAI's form; empty if it has none.
nlohmann::ordered_json GetTools(const Task& task);

// What an environment says to `turn` as the episode reads it: in tokens, unless no turn follows or a reset says nothing.
absl::StatusOr<EnvironmentAnswer> EncodeAnswer(const PlayRules& rules, const EnvironmentMessage& said,
                                               const std::vector<int32_t>& turn);

// Collects the samples of one lease, each of which plays a game of its own. A built-in environment answers at once, on
// the engine's thread, so a sample is parked for a moment only. Not thread-safe, but for Play().
class PlayAssembly final : public GenerationSink {
 public:
  // Continues a parked sample behind given tokens: EngineLoop::Extend of the lease's request.
  using Extend = std::function<absl::Status(int32_t sample, std::vector<int32_t> given)>;

  // The parameters are those of GroupAssembly; each sample's `reward` is what its environment gave. `rules` must outlive the assembly. `done`
  // also gets
  //   ABORTED (reason ENVIRONMENT_FAILED)   the game cannot be played, or a play failed
  PlayAssembly(const Lease& lease, const MemberId& member, GroupAssembly::Done done, std::shared_ptr<TokenCount> made,
               const StopRules* stops, const PlayRules* rules, Extend extend);

  // Starts the games. An error as `done` gets it; then the request must not be submitted. Call once, before that.
  absl::Status Start();

  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
               const std::vector<TokenLogProb>& top) override {
    return assembly_.OnToken(sample, token, logprob, version, top);
  }
  bool OnTurnEnded(int32_t sample, FinishReason finish, const Trajectory& so_far) override;
  void OnFinished(int32_t sample, Trajectory trajectory) override;

 private:
  struct Player {
    Episode episode;
    std::unique_ptr<EnvironmentGame> game;
  };

  absl::Status CannotPlay(absl::string_view why) const;
  // Does what the episode asks for, and what it asks for then. Returns whether the sample goes on.
  bool Obey(int32_t sample, Episode::Actions actions);
  Episode::Actions Call(Player& player, const Episode::Action& action);

  const Lease lease_;
  const PlayRules& rules_;
  const Extend extend_;
  std::vector<Player> players_;
  absl::Status failure_;  // of a game: the group is not submitted
  GroupAssembly assembly_;
};

}  // namespace syncopate::rollouter
