#include "tests/unit/rollouter/engine/scheduler_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {

SchedulerOutcome SimulateScheduler(uint64_t seed, const MakeScheduler& make_scheduler, bool lends, bool turns,
                                   bool yields) {
  return SchedulerWorld(seed, make_scheduler, lends, turns, yields).Run();
}

SchedulerWorld::SchedulerWorld(uint64_t seed, const MakeScheduler& make_scheduler, bool lends, bool turns, bool yields)
    : random_(seed),
      turns_(turns),
      options_(RandomOptions(lends)),
      depth_(Int(1, turns ? 3 : 2)),
      abort_chance_(Int(0, 1) * 0.05),
      install_chance_(Int(0, 1) * 0.1),
      sink_chance_(Int(0, 1) * 0.02),
      priority_chance_(Int(0, 2) * 0.4),
      lend_chance_(options_.lent_blocks > 0 ? 0.1 : 0),
      extend_chance_(turns ? 0.02 * static_cast<double>(Int(1, 20)) : 0),
      yield_chance_(yields ? 0.03 : 0),
      scheduler_(make_scheduler(options_)),
      runner_(options_) {
  scheduler_->SetVersion(version_);
}

Scheduler::Options SchedulerWorld::RandomOptions(bool lends) {
  Scheduler::Options options;
  options.max_context = Int(20, 100);
  options.max_sequences = Int(1, 8);
  options.blocks = Int(4, 30);
  options.host_blocks = Int(0, 12);
  options.max_kept_blocks = Int(0, options.blocks);
  options.max_prefill_tokens = Int(3, 60);
  options.max_passed_over = Int(2, 6);
  options.max_gathering_plans = Int(0, 3);
  options.decoding_to_gathering = Int(1, 4);
  options.follow_usage = Chance(0.5);
  options.preemption = Chance(0.5) ? Scheduler::Preemption::kSwap : Scheduler::Preemption::kRecompute;
  options.lent_blocks = lends && Chance(0.5) ? Int(1, options.blocks - 1) : 0;
  return options;
}

Scheduler::Request SchedulerWorld::RandomRequest() {
  Scheduler::Request request;
  request.key = ++last_key_;
  // There are few different beginnings, so that prompts share prefixes.
  auto prompt = std::make_shared<std::vector<int32_t>>();
  const int64_t stem = Int(1, 2), own = Int(0, 60), length = Int(1, 60);
  for (int64_t i = 0; i < length; ++i) {
    prompt->push_back(static_cast<int32_t>((i < own ? stem * (i + 1) : Int(0, 9)) % StampingRunner::kVocabulary));
  }
  request.prompt = prompt;
  auto sampling = std::make_shared<SamplingParams>();
  sampling->max_new_tokens = static_cast<int32_t>(Int(1, 50));
  if (Chance(0.5)) sampling->stop_token_ids = {1};
  if (Chance(0.2)) sampling->stop_sequences = {{2}, {3, 4}, {5, 6, 7}};
  request.sampling = sampling;
  for (int64_t n = Int(1, std::min<int64_t>(4, options_.max_sequences)); n > 0; --n) {
    request.seeds.push_back(request.key * 100 + static_cast<uint64_t>(n));
  }
  request.first = Chance(0.03);
  request.priority = Chance(priority_chance_) ? static_cast<int32_t>(Int(1, 2)) : 0;
  if (Chance(0.3)) request.deadline = Int(0, 5);
  request.adapter = Int(kBaseAdapter, 1);
  if (turns_ && Chance(0.5)) {
    sampling->max_new_tokens = static_cast<int32_t>(Int(1, 12));
    request.max_total_tokens = Int(1, 70);
    request.starts_parked = Chance(0.3);
  }
  return request;
}

SchedulerOutcome SchedulerWorld::Run() {
  to_add_ = 40;
  for (int64_t round = 0; outcome_.errors.empty(); ++round) {
    if (round > 20000) Fail("it does not end");
    if (to_add_ > 0 && Chance(0.4)) AddRequest();
    if (Chance(abort_chance_)) AbortRequest();
    if (Chance(install_chance_)) Install();
    LendOrReturn();
    if (yield_chance_ > 0 && !lending_ && Chance(yield_chance_)) Yield();
    ExtendOrEnd();
    const bool launched = LaunchOne();
    if (!outcome_.errors.empty()) break;
    if (static_cast<int64_t>(launched_.size()) >= depth_ || (!launched && !launched_.empty())) CompleteOldest();
    if (to_add_ == 0 && !scheduler_->HasRequests()) break;
  }
  while (!launched_.empty() && outcome_.errors.empty()) CompleteOldest();
  if (outcome_.errors.empty()) CheckEnd();
  outcome_.counters = scheduler_->counters();
  return outcome_;
}

void SchedulerWorld::AddRequest() {
  Scheduler::Request request = RandomRequest();
  if (!scheduler_->Check(request).ok()) return;
  --to_add_;
  Known& known = known_[request.key];
  known.request = request;
  uint64_t chain = 0;
  for (int32_t token : *request.prompt) chain = StampingRunner::Extend(chain, token);
  known.samples.resize(request.seeds.size());
  for (Sample& sample : known.samples) sample.chain = chain;
  for (size_t i = 0; request.starts_parked && i < known.samples.size(); ++i) {
    known.samples[i].parked = true;
    parked_.push_back({request.key, static_cast<int32_t>(i)});
  }
  known.started = request.starts_parked;  // a sample that does not wait is not overtaken
  scheduler_->Add(std::move(request));
}

void SchedulerWorld::AbortRequest() {
  if (known_.empty()) return;
  const uint64_t key = static_cast<uint64_t>(Int(1, static_cast<int64_t>(last_key_)));
  const std::vector<int32_t> ended = scheduler_->Abort(key);
  auto found = known_.find(key);
  std::vector<int32_t> expected;
  for (size_t i = 0; found != known_.end() && i < found->second.samples.size(); ++i) {
    if (std::exchange(found->second.samples[i].ended, true)) continue;
    expected.push_back(static_cast<int32_t>(i));
    ++outcome_.aborted;
    outcome_.aborted_parked += std::exchange(found->second.samples[i].parked, false) ? 1 : 0;
  }
  if (found != known_.end()) found->second.started = true;  // the sample waits no more
  std::erase_if(parked_, [key](const auto& parked) { return parked.first == key; });
  if (ended != expected) Fail("an abort ended other samples than those that ran");
}

// An install waits for the launched plans.
void SchedulerWorld::Install() {
  while (!launched_.empty()) CompleteOldest();
  ++version_.step;
  ++outcome_.installs;
  scheduler_->SetVersion(version_);
}

// All plans end first. What the last one does not copy to the host is lost.
void SchedulerWorld::Yield() {
  while (!launched_.empty()) CompleteOldest();
  ++outcome_.yields;
  const StepPlan plan = scheduler_->Yield();
  if (plan.HasRows() || !plan.starts.empty() || !plan.swaps_in.empty()) Fail("a yield that computes");
  if (!plan.IsEmpty()) {
    if (!runner_.Execute(plan).empty()) Fail("a yield that draws");
    scheduler_->Complete(plan.id, {});
  }
  if (scheduler_->running_sequences() != 0 || scheduler_->offering_sequences() != 0) Fail("a sequence that stays");
  runner_.TakeAway(0);
  runner_.GiveBack();
  if (Chance(0.5)) Install();
}

void SchedulerWorld::LendOrReturn() {
  if (!lending_) {
    if (!Chance(lend_chance_)) return;
    scheduler_->Lend();
    lending_ = true;
    lending_since_ = 0;
  }
  if (!scheduler_->has_lent() && Chance(0.2)) LendWithoutAStep();
  // The plan that moves the blocks comes next; it is awaited after as many rounds as plans may be in progress.
  if (++lending_since_ > 2 * depth_ + 2 && !taken_away_) Fail("blocks that are not lent in time");
  if (scheduler_->has_lent() && !taken_away_) {
    const BlockIndex first = static_cast<BlockIndex>(options_.blocks - options_.lent_blocks);
    for (const Launched& launched : launched_) {
      if (launched.highest >= first) Fail("a plan in progress uses a lent block");
    }
    runner_.TakeAway(first);
    taken_away_ = true;
    ++outcome_.lends;
  }
  // The blocks are returned when nothing can continue without them or when they are no longer needed; an attempt may
  // fail at any moment.
  const bool stands = taken_away_ && launched_.empty() && scheduler_->HasWork() && scheduler_->running_sequences() == 0;
  if (!stands && !Chance(0.15)) return;
  outcome_.returned_early += taken_away_ ? 0 : 1;
  runner_.GiveBack();
  scheduler_->Return();
  lending_ = taken_away_ = false;
}

void SchedulerWorld::LendWithoutAStep() {
  while (!launched_.empty()) CompleteOldest();
  ++outcome_.lends_without_a_step;
  const int64_t running = scheduler_->running_sequences(), preempted = scheduler_->counters().preemptions;
  const StepPlan plan = scheduler_->PlanLend();
  moved_ = scheduler_->counters().moved_blocks;
  preempted_ = scheduler_->counters().preemptions;
  if (plan.HasRows() || !plan.starts.empty() || !plan.swaps_in.empty()) Fail("a lending that computes");
  if (scheduler_->running_sequences() < running && preempted_ == preempted) Fail("a lending that ends sequences");
  if (!plan.IsEmpty()) {
    if (!runner_.Execute(plan).empty()) Fail("a lending that draws");
    for (const std::string& error : runner_.errors()) Fail(error);
    scheduler_->Complete(plan.id, {});
  }
  if (!scheduler_->has_lent()) Fail("blocks that are not lent without a step");
}

bool SchedulerWorld::LaunchOne() {
  const StepPlan plan = scheduler_->Plan();
  if (scheduler_->counters().preemptions > std::exchange(preempted_, scheduler_->counters().preemptions) &&
      scheduler_->offering_sequences() > 0) {
    Fail("a preemption while others have blocks to give up");
  }
  if (plan.IsEmpty()) {
    if (launched_.empty() && scheduler_->HasWork() && !lending_) Fail("there is work, but no plan");
    return false;
  }
  ++outcome_.plans;
  if (plan.version != version_) Fail("a plan of another version");
  outcome_.moving_plans += scheduler_->counters().moved_blocks > moved_ ? 1 : 0;
  moved_ = scheduler_->counters().moved_blocks;
  if (scheduler_->parked_sequences() != std::ssize(parked_)) Fail("another number of parked samples");
  NoteStarts(plan);
  launched_.push_back({plan.id, runner_.Execute(plan), runner_.highest()});
  for (const std::string& error : runner_.errors()) Fail(error);
  return true;
}

// A request that starts overtakes all older requests that have not started.
void SchedulerWorld::NoteStarts(const StepPlan& plan) {
  for (const SlotStart& start : plan.starts) {
    Known& starting = known_[start.key];
    if (starting.samples[start.sample].parked) Fail("a parked sample starts");
    if (std::exchange(starting.started, true) || starting.request.first) continue;
    for (auto& [key, other] : known_) {
      if (key >= starting.request.key) break;
      if (other.started) continue;
      ++outcome_.overtaken;
      if (++other.overtaken > options_.max_passed_over) Fail(absl::StrCat("request ", key, " starves"));
    }
  }
}

void SchedulerWorld::CompleteOldest() {
  const Launched oldest = std::move(launched_.front());
  launched_.pop_front();
  for (const Scheduler::Drawn& drawn : scheduler_->Complete(oldest.plan, oldest.tokens)) {
    Take(drawn, oldest.tokens[drawn.draw]);
  }
}

void SchedulerWorld::Take(const Scheduler::Drawn& drawn, int32_t token) {
  Known& known = known_[drawn.key];
  Sample& sample = known.samples[drawn.sample];
  if (sample.ended) return Fail("a token of a sample that has ended");
  if (sample.parked) return Fail("a token of a sample that is parked");
  const int64_t number = static_cast<int64_t>(sample.drawn.size());
  if (token != StampingRunner::Draw(known.request.seeds[drawn.sample], number, sample.chain)) {
    return Fail("a token that an undisturbed run would not have drawn");
  }
  sample.drawn.push_back(token);
  sample.chain = StampingRunner::Extend(sample.chain, token);
  if (drawn.finish != Expected(known, sample))
    return Fail("a sample that ends where it should not, or not where it should");
  if (!drawn.finish.has_value()) {
    if (Chance(sink_chance_)) EndAsSink(drawn.key, drawn.sample);
  } else if (known.request.has_turns()) {
    NotePark(drawn.key, drawn.sample);
  } else {
    sample.ended = true;
    ++outcome_.finished;
  }
}

void SchedulerWorld::EndAsSink(uint64_t key, int32_t sample) {
  ++outcome_.ended_by_sink;
  if (known_[key].request.has_turns() && Chance(0.7)) {
    scheduler_->Park(key, sample);
    return NotePark(key, sample);
  }
  scheduler_->End(key, sample);
  known_[key].samples[sample].ended = true;
}

void SchedulerWorld::NotePark(uint64_t key, int32_t sample) {
  ++outcome_.parks;
  known_[key].samples[sample].parked = true;
  parked_.push_back({key, sample});
  if (Chance(0.1)) Extend(key, sample);  // its draws beyond the end are still in progress
}

void SchedulerWorld::ExtendOrEnd() {
  for (const auto& [key, sample] : std::vector(parked_)) {
    if (!Chance(extend_chance_)) continue;
    if (Chance(0.05)) Rewind(key, sample);
    Extend(key, sample);
  }
}

void SchedulerWorld::Rewind(uint64_t key, int32_t number) {
  ++outcome_.rewinds;
  scheduler_->Rewind(key, number);
  const Known& known = known_[key];
  Sample& sample = known_[key].samples[number];
  sample = {};
  for (int32_t token : *known.request.prompt) sample.chain = StampingRunner::Extend(sample.chain, token);
  sample.parked = true;
}

void SchedulerWorld::Extend(uint64_t key, int32_t number) {
  Sample& sample = known_[key].samples[number];
  std::erase(parked_, std::pair(key, number));
  sample.parked = false;
  std::vector<int32_t> given;
  const int64_t least = sample.drawn.empty() ? 0 : 1;
  for (int64_t n = Int(least, Chance(0.5) ? 3 : 20); n > 0; --n) {
    given.push_back(static_cast<int32_t>(Int(0, StampingRunner::kVocabulary - 1)));
  }
  const int64_t length = std::ssize(given) + std::ssize(sample.drawn);
  const Scheduler::Request& request = known_[key].request;
  const bool fits = length < request.max_total_tokens && std::ssize(*request.prompt) + length < options_.max_context;
  if (fits != scheduler_->MayExtend(key, number, std::ssize(given))) Fail("given tokens that are wrongly refused");
  if (!fits || Chance(0.1)) {
    scheduler_->End(key, number);
    sample.ended = true;
    ++outcome_.ended_parked;
    return;
  }
  scheduler_->Extend(key, number, given);
  for (int32_t token : given) sample.chain = StampingRunner::Extend(sample.chain, token);
  sample.drawn.insert(sample.drawn.end(), given.begin(), given.end());
  sample.turn_begin = std::ssize(sample.drawn);
  ++outcome_.extensions;
}

std::optional<FinishReason> SchedulerWorld::Expected(const Known& known, const Sample& sample) const {
  const SamplingParams& sampling = *known.request.sampling;
  const std::vector<int32_t> drawn(sample.drawn.begin() + sample.turn_begin, sample.drawn.end());
  if (!sampling.stop_token_ids.empty() && drawn.back() == 1) return FinishReason::kStop;
  for (const std::vector<int32_t>& stop : sampling.stop_sequences) {
    if (drawn.size() >= stop.size() && std::equal(stop.begin(), stop.end(), drawn.end() - stop.size())) {
      return FinishReason::kStop;
    }
  }
  const int64_t all = static_cast<int64_t>(known.request.prompt->size() + sample.drawn.size());
  if (std::ssize(drawn) == sampling.max_new_tokens || all == options_.max_context ||
      (known.request.has_turns() && std::ssize(sample.drawn) == known.request.max_total_tokens)) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

void SchedulerWorld::CheckEnd() {
  if (lending_) scheduler_->Return();
  for (const auto& [key, known] : known_) {
    for (const Sample& sample : known.samples) {
      if (!sample.ended) Fail(absl::StrCat("a sample of request ", key, " never ended"));
    }
  }
  if (scheduler_->HasWork() || scheduler_->HasRequests()) Fail("it still has work");
  if (scheduler_->parked_sequences() != 0 || scheduler_->offering_sequences() != 0) Fail("a leaked parked sample");
  if (scheduler_->free_blocks() != options_.blocks) Fail("a leaked block");
  if (scheduler_->free_host_blocks() != options_.host_blocks) Fail("a leaked block on the host");
  if (scheduler_->running_sequences() != 0 || scheduler_->waiting_sequences() != 0) Fail("a leaked slot");
  if (scheduler_->plans_under_way() != 0) Fail("a plan that nobody completes");
}

}  // namespace syncopate::rollouter
