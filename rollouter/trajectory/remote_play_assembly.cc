#include "rollouter/trajectory/remote_play_assembly.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

std::shared_ptr<const text::chat::TextParameters> FindTools(const Lease& lease) {
  const nlohmann::ordered_json tools = GetTools(lease.task);
  if (tools.empty()) return nullptr;
  return std::make_shared<const text::chat::TextParameters>(text::chat::FindTextParameters(tools));
}

}  // namespace

RemotePlayAssembly::RemotePlayAssembly(const Lease& lease, const MemberId& member, GroupAssembly::Done done,
                                       std::shared_ptr<TokenCount> made, const StopRules* stops, const Options& options,
                                       Engine engine)
    : lease_(lease),
      options_(options),
      engine_(std::move(engine)),
      tools_(FindTools(lease)),
      assembly_(
          lease, member,
          [this, done = std::move(done)](absl::StatusOr<TrajectoryGroup> group) {
            const absl::Status failed = failure();
            done(failed.ok() ? std::move(group) : failed);
          },
          std::move(made), stops) {
  for (int32_t i = 0; i < lease_.samples; ++i) {
    players_.push_back({Episode(options_.rules->episode, SampleSeed(lease_.seed, i))});
  }
}

absl::Status RemotePlayAssembly::failure() const {
  MutexLock lock(&mutex_);
  return failure_;
}

void RemotePlayAssembly::Start() {
  MutexLock lock(&mutex_);
  for (int32_t i = 0; i < lease_.samples; ++i) {
    Episode& episode = players_[static_cast<size_t>(i)].episode;
    if (!episode.is_over()) Obey(i, episode.Start());  // an abort may have come before
  }
}

bool RemotePlayAssembly::OnTurnEnded(int32_t sample, FinishReason finish, const Trajectory& so_far) {
  MutexLock lock(&mutex_);
  Episode& episode = players_[static_cast<size_t>(sample)].episode;
  if (!failure_.ok() || episode.is_over()) return false;
  const auto begin = so_far.given.empty() ? 0 : so_far.given.back().end;
  Obey(sample, episode.OnTurnEnded({so_far.tokens.begin() + begin, so_far.tokens.end()}, finish));
  return true;
}

void RemotePlayAssembly::OnFinished(int32_t sample, Trajectory trajectory) {
  {
    MutexLock lock(&mutex_);
    Player& player = players_[static_cast<size_t>(sample)];
    if (!player.episode.is_over()) player.episode.Cancel();  // aborted, or ended by the engine for lack of room
    if (player.plays > 0) options_.remote->Close(EpisodeId(sample), "the sample has ended");
    SetResult(player.episode.result(), &trajectory);
  }
  assembly_.OnFinished(sample, std::move(trajectory));
}

std::string RemotePlayAssembly::EpisodeId(int32_t sample) const {
  return absl::StrCat(options_.id, "/", sample, "/", players_[static_cast<size_t>(sample)].plays);
}

void RemotePlayAssembly::Obey(int32_t sample, Episode::Actions actions) {
  using Kind = Episode::Action::Kind;
  for (Episode::Action& action : actions) {
    switch (action.kind) {
      case Kind::kReset:
      case Kind::kStep:
        Call(sample, action);
        break;
      case Kind::kBegin:
      case Kind::kExtend: {
        const auto& go_on = action.kind == Kind::kBegin ? engine_.begin : engine_.extend;
        if (const absl::Status begun = go_on(sample, std::move(action.tokens)); !begun.ok()) Fail(begun);
        break;
      }
      case Kind::kRewind:
        engine_.rewind(sample);
        break;
      case Kind::kFinish:
      case Kind::kAbort:
        engine_.end(sample);
        break;
      case Kind::kCancelCall:
        options_.remote->Close(EpisodeId(sample), "cancelled");
        break;
      case Kind::kHandBack:
        Fail(action.why);
        break;
    }
  }
}

void RemotePlayAssembly::Fail(const absl::Status& why) {
  failure_.Update(why);
  // The other samples end, too: parked ones now, others at once by the abort or at the end of their turn.
  for (int32_t i = 0; i < lease_.samples; ++i) engine_.end(i);
  engine_.abort();
}

void RemotePlayAssembly::Call(int32_t sample, const Episode::Action& action) {
  Player& player = players_[static_cast<size_t>(sample)];
  CountCalls(1);
  auto said = [self = shared_from_this(), sample, call = action.call](
                  const absl::StatusOr<EnvironmentMessage>& message) { self->OnSaid(sample, call, message); };
  if (action.kind == Episode::Action::Kind::kStep) {
    player.tokens = action.tokens;
    options_.remote->Act(EpisodeId(sample), ReadAction(++player.turn, action.tokens, action.finish), std::move(said));
    return;
  }
  if (player.plays > 0) options_.remote->Close(EpisodeId(sample), "it is played anew");
  ++player.plays;
  player.turn = 0;
  player.tokens.clear();
  options_.remote->Open({.id = EpisodeId(sample),
                         .environment = options_.environment,
                         .row_json = lease_.task.row_json,
                         .seed = action.seed,
                         .max_turns = options_.rules->episode.max_turns},
                        std::move(said));
}

RemoteAction RemotePlayAssembly::ReadAction(int32_t turn, const std::vector<int32_t>& tokens,
                                            FinishReason finish) const {
  RemoteAction action = {.turn = turn, .text = options_.rules->decode(tokens), .finish = finish};
  const text::chat::ToolFormat format = options_.rules->tool_format;
  if (tools_ == nullptr || format == text::chat::ToolFormat::kNone) return action;
  text::chat::ToolCallParser parser(format, tools_);
  action.content = parser.Add(action.text);
  action.content += parser.End();
  action.tool_calls = parser.TakeCalls();
  return action;
}

void RemotePlayAssembly::OnSaid(int32_t sample, int64_t call, const absl::StatusOr<EnvironmentMessage>& said) {
  CountCalls(-1);
  MutexLock lock(&mutex_);
  Player& player = players_[static_cast<size_t>(sample)];
  const absl::StatusOr<EnvironmentAnswer> answer = said.ok() ? EncodeAnswer(*options_.rules, *said, player.tokens)
                                                             : absl::StatusOr<EnvironmentAnswer>(said.status());
  Obey(sample, answer.ok() ? player.episode.OnAnswered(call, *answer) : player.episode.OnFailed(call, answer.status()));
}

}  // namespace syncopate::rollouter
