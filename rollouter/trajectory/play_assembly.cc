#include "rollouter/trajectory/play_assembly.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/guess_tokens.h"
#include "base/reasons.h"
#include "rollouter/environment/guess.h"

namespace syncopate::rollouter {

absl::StatusOr<PlayRules> MakePlayRules(const std::string& name, const Episode::Options& episode) {
  SYNCOPATE_RETURN_IF_ERROR(episode.Validate());
  const EnvironmentRegistry registry = EnvironmentRegistry::BuiltIn();
  SYNCOPATE_ASSIGN_OR_RETURN(const MakeGame* make, registry.Find(name));
  if (name != "guess") {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_ENVIRONMENT",
                 absl::StrCat("the environment ", name, " says text, and only guess has tokens without a tokenizer"));
  }
  return PlayRules{.environment = name,
                   .games = {{name, *make}},
                   .episode = episode,
                   .decode = RenderGuess,
                   .encode = [](const EnvironmentMessage& said, const std::vector<int32_t>&) {
                     return EnvironmentAnswer{.content = EncodeGuess(said.text), .closing = {guess_tokens::kAsk}};
                   }};
}

absl::StatusOr<PlayRules> MakeTextPlayRules(const std::string& name, const Episode::Options& episode,
                                            std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer,
                                            std::shared_ptr<const TurnFormat> format) {
  SYNCOPATE_RETURN_IF_ERROR(episode.Validate());
  const EnvironmentRegistry registry = EnvironmentRegistry::BuiltIn();
  std::map<std::string, MakeGame> games;
  for (const std::string& known : registry.Names()) games[known] = *registry.Find(known).value();
  return PlayRules{
      .environment = name,
      .games = std::move(games),
      .episode = episode,
      .decode = text::tokenizer::MakeTextDecoder(std::move(tokenizer)),
      .encode = [format = std::move(format)](const EnvironmentMessage& said, const std::vector<int32_t>& turn) {
        return format->Encode(said, turn);
      }};
}

std::string GetEnvironmentName(const PlayRules& rules, const Task& task) {
  const nlohmann::json row = nlohmann::json::parse(task.row_json, nullptr, /*allow_exceptions=*/false);
  const bool is_named = row.is_object() && row.contains("environment") && row["environment"].is_string();
  return is_named ? row["environment"].get<std::string>() : rules.environment;
}

nlohmann::ordered_json GetTools(const Task& task) {
  using Json = nlohmann::ordered_json;
  const Json row = Json::parse(task.row_json, nullptr, /*allow_exceptions=*/false);
  const bool has_tools = row.is_object() && row.contains("tools") && row["tools"].is_array();
  return has_tools ? row["tools"] : Json::array();
}

absl::StatusOr<PlayPlace> FindPlace(const PlayRules& rules, const Task& task) {
  PlayPlace place{.environment = GetEnvironmentName(rules, task)};
  const bool is_built_in = rules.games.contains(place.environment);
  if (rules.remote == nullptr && is_built_in) return place;
  if (rules.remote == nullptr) {
    return Error(absl::StatusCode::kNotFound, "NO_SUCH_ENVIRONMENT",
                 absl::StrCat("the row names the environment ", place.environment,
                              ", which is not built in, and there is no worker that could have it"));
  }
  const absl::Status there = rules.remote->Availability(place.environment);
  place.remote = there.ok();
  if (there.ok() || (absl::IsNotFound(there) && is_built_in)) return place;
  return there;
}

absl::StatusOr<EnvironmentAnswer> EncodeAnswer(const PlayRules& rules, const EnvironmentMessage& said,
                                               const std::vector<int32_t>& turn) {
  EnvironmentAnswer answer;
  const bool says_nothing = said.text.empty() && said.tool_results.empty();
  const bool is_read = !said.done && !said.rejected && !(turn.empty() && says_nothing);
  if (is_read) {
    SYNCOPATE_ASSIGN_OR_RETURN(answer, rules.encode(said, turn));
  }
  answer.reward = said.reward;
  answer.done = said.done;
  answer.rejected = said.rejected;
  answer.seconds = said.seconds;
  return answer;
}

PlayAssembly::PlayAssembly(const Lease& lease, const MemberId& member, GroupAssembly::Done done,
                           std::shared_ptr<TokenCount> made, const StopRules* stops, const PlayRules* rules,
                           Extend extend)
    : lease_(lease),
      rules_(*rules),
      extend_(std::move(extend)),
      assembly_(
          lease, member,
          [this, done = std::move(done)](absl::StatusOr<TrajectoryGroup> group) {
            done(failure_.ok() ? std::move(group) : failure_);
          },
          std::move(made), stops) {}

absl::Status PlayAssembly::CannotPlay(absl::string_view why) const {
  return Error(absl::StatusCode::kAborted, reason::kEnvironmentFailed,
               absl::StrCat("group ", lease_.id.group.ToString(), " cannot be played: ", why));
}

absl::Status PlayAssembly::Start() {
  Episode::Options episode = rules_.episode;
  episode.max_retries = 0;  // what is built in fails by its row alone: another play would fail, too
  const std::string name = GetEnvironmentName(rules_, lease_.task);
  const auto make = rules_.games.find(name);
  if (make == rules_.games.end()) return CannotPlay(absl::StrCat("the environment ", name, " is not built in"));
  for (int32_t i = 0; i < lease_.samples; ++i) {
    absl::StatusOr<std::unique_ptr<EnvironmentGame>> game = make->second(lease_.task.row_json);
    if (!game.ok()) return CannotPlay(game.status().message());
    players_.push_back({Episode(episode, SampleSeed(lease_.seed, i)), *std::move(game)});
  }
  for (int32_t i = 0; i < lease_.samples; ++i) Obey(i, players_[static_cast<size_t>(i)].episode.Start());
  return failure_;
}

bool PlayAssembly::OnTurnEnded(int32_t sample, FinishReason finish, const Trajectory& so_far) {
  if (!failure_.ok()) return false;
  const auto begin = so_far.given.empty() ? 0 : so_far.given.back().end;
  return Obey(sample, players_[static_cast<size_t>(sample)].episode.OnTurnEnded(
                          {so_far.tokens.begin() + begin, so_far.tokens.end()}, finish));
}

bool PlayAssembly::Obey(int32_t sample, Episode::Actions actions) {
  using Kind = Episode::Action::Kind;
  Player& player = players_[static_cast<size_t>(sample)];
  bool goes_on = false;
  while (!actions.empty()) {
    Episode::Actions next;
    for (Episode::Action& action : actions) {
      switch (action.kind) {
        case Kind::kReset:
        case Kind::kStep:
          next = Call(player, action);
          break;
        case Kind::kExtend:
          failure_.Update(extend_(sample, std::move(action.tokens)));
          goes_on = failure_.ok();
          break;
        case Kind::kHandBack:
          failure_.Update(action.why);
          goes_on = false;
          break;
        case Kind::kBegin:       // the request is submitted when all games have begun, and their resets say nothing
        case Kind::kFinish:      // the sample ends, as it does not go on
        case Kind::kAbort:       // it ends, too
        case Kind::kCancelCall:  // a call ends before anything can cancel it
          break;
        case Kind::kRewind:  // no play is tried again
          SYNCOPATE_CHECK(false);
      }
    }
    actions = std::move(next);
  }
  return goes_on;
}

Episode::Actions PlayAssembly::Call(Player& player, const Episode::Action& action) {
  if (action.kind == Episode::Action::Kind::kReset) {
    const absl::Status begun = player.game->Reset(action.seed);
    return begun.ok() ? player.episode.OnAnswered(action.call, {}) : player.episode.OnFailed(action.call, begun);
  }
  const absl::StatusOr<EnvironmentMessage> said = player.game->Step(rules_.decode(action.tokens));
  if (!said.ok()) return player.episode.OnFailed(action.call, said.status());
  const absl::StatusOr<EnvironmentAnswer> answer = EncodeAnswer(rules_, *said, action.tokens);
  return answer.ok() ? player.episode.OnAnswered(action.call, *answer)
                     : player.episode.OnFailed(action.call, answer.status());
}

void PlayAssembly::OnFinished(int32_t sample, Trajectory trajectory) {
  Player& player = players_[static_cast<size_t>(sample)];
  if (trajectory.finish == FinishReason::kAborted) player.episode.Cancel();
  SetResult(player.episode.result(), &trajectory);
  assembly_.OnFinished(sample, std::move(trajectory));
}

}  // namespace syncopate::rollouter
