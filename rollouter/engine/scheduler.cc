// One class, above 700 lines: all parts of a plan work on one state.
#include "rollouter/engine/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

absl::Status BadRequest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message);
}

// Returns how many blocks `samples` samples allocate for their next write when each has computed `tokens`: a new block
// for each, or, if the last block is partly filled, a copy of it for all but one.
int64_t BlocksToWrite(int64_t tokens, int64_t samples) { return tokens % kBlockTokens == 0 ? samples : samples - 1; }

}  // namespace

absl::Status Scheduler::Options::Validate() const {
  if (blocks > 0 && host_blocks >= 0 && lent_blocks >= 0 && lent_blocks < blocks && max_kept_blocks >= 0 &&
      max_sequences > 0 && max_prefill_tokens > 0 && max_context > 0 && max_passed_over > 0 &&
      max_gathering_plans >= 0 && decoding_to_gathering > 0) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
      absl::StrCat("Scheduler: blocks ", blocks, ", max_sequences ", max_sequences, ", max_prefill_tokens ",
                   max_prefill_tokens, ", max_context ", max_context, ", max_passed_over ", max_passed_over,
                   " and decoding_to_gathering ", decoding_to_gathering, " must be positive, host_blocks ", host_blocks,
                   ", max_kept_blocks ", max_kept_blocks, " and max_gathering_plans ", max_gathering_plans,
                   " not negative, lent_blocks ", lent_blocks, " from 0 to less than blocks"));
}

Scheduler::Scheduler(const Options& options)
    : options_(options),
      pool_(options.blocks, options.max_kept_blocks),
      concurrency_(options.max_sequences),
      writers_(static_cast<size_t>(options.blocks), 0) {
  for (int64_t block = options.host_blocks - 1; block >= 0; --block) {
    free_host_blocks_.push_back(static_cast<BlockIndex>(block));
  }
  for (int64_t slot = options.max_sequences - 1; slot >= 0; --slot) {
    free_slots_.push_back(static_cast<SlotIndex>(slot));
  }
}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::Check(const Request& request) const {
  const int64_t length = static_cast<int64_t>(request.prompt->size());
  const int64_t samples = static_cast<int64_t>(request.seeds.size());
  if (length == 0) return BadRequest("the prompt is empty");
  if (length >= options_.max_context) {
    return BadRequest(absl::StrCat("the prompt has ", length, " tokens; the context has room for ",
                                   options_.max_context, ", which must leave room for an answer"));
  }
  if (samples == 0 || samples > options_.max_sequences) {
    return BadRequest(absl::StrCat(samples, " samples asked for, 1 to ", options_.max_sequences, " fit"));
  }
  if (request.sampling->max_new_tokens <= 0) return BadRequest("max_new_tokens must be positive");
  if (request.max_total_tokens < 0) return BadRequest("max_total_tokens must not be negative");
  if (request.starts_parked && !request.has_turns()) return BadRequest("only samples with turns start parked");
  SYNCOPATE_RETURN_IF_ERROR(CheckStarts(request));
  const int64_t longest = MaxPositions(request);
  const int64_t to_start = Blocks(length) + (length < longest ? BlocksToWrite(length, samples) : 0);
  const int64_t needed = std::max(Blocks(longest), to_start);
  if (needed <= options_.blocks) return absl::OkStatus();
  return BadRequest(absl::StrCat("the request needs keys and values for ", needed * kBlockTokens,
                                 " tokens at once, this engine has memory for ", options_.blocks * kBlockTokens,
                                 "; ask for a shorter answer or fewer samples"));
}

absl::Status Scheduler::CheckStarts(const Request& request) const {
  if (request.starts.empty()) return absl::OkStatus();
  if (request.has_turns()) return BadRequest("samples with turns have no starts");
  if (request.starts.size() != request.seeds.size()) {
    return BadRequest(absl::StrCat(request.starts.size(), " starts for ", request.seeds.size(), " samples"));
  }
  const auto length = static_cast<int64_t>(request.prompt->size());
  const int64_t most = std::min<int64_t>(request.sampling->max_new_tokens, options_.max_context - length);
  for (const std::vector<int32_t>& start : request.starts) {
    if (std::ssize(start) >= most) {
      return BadRequest(absl::StrCat("a start of ", start.size(), " tokens for an answer of at most ", most));
    }
  }
  return absl::OkStatus();
}

void Scheduler::Add(Request request) {
  auto state = std::make_unique<RequestState>();
  state->arrival = ++arrivals_;
  state->samples.resize(request.seeds.size());
  state->live = static_cast<int32_t>(request.seeds.size());
  live_samples_ += state->live;
  Unit unit;
  for (Sequence& sequence : state->samples) {
    sequence.request = state.get();
    sequence.sample = static_cast<int32_t>(unit.size());
    unit.push_back(&sequence);
  }
  state->request = std::move(request);
  // A sample with a start has a prefill of its own.
  for (size_t i = 0; i < state->request.starts.size(); ++i) {
    if (state->request.starts[i].empty()) continue;
    Sequence& sequence = state->samples[i];
    sequence.drawn = std::move(state->request.starts[i]);
    std::erase(unit, &sequence);
    waiting_.emplace(GetOrder(sequence), Unit{&sequence});
  }
  state->request.starts.clear();
  if (state->request.starts_parked) {
    for (Sequence* sequence : unit) sequence->phase = Phase::kParked;
    parked_samples_ += state->live;
  } else if (!unit.empty()) {
    waiting_.emplace(GetOrder(*unit.front()), std::move(unit));
  }
  const bool added = requests_.emplace(state->request.key, std::move(state)).second;
  SYNCOPATE_CHECK(added);
}

std::vector<int32_t> Scheduler::Abort(uint64_t key) {
  std::vector<int32_t> ended;
  auto found = requests_.find(key);
  if (found == requests_.end()) return ended;
  for (Sequence& sequence : found->second->samples) {
    if (sequence.phase == Phase::kEnded) continue;
    EndSequence(sequence);
    ended.push_back(sequence.sample);
  }
  ForgetEnded();
  return ended;
}

void Scheduler::End(uint64_t key, int32_t sample) {
  auto found = requests_.find(key);
  if (found == requests_.end()) return;
  Sequence& sequence = found->second->samples[sample];
  if (sequence.phase == Phase::kEnded) return;
  SYNCOPATE_CHECK(!sequence.drawn.empty() || sequence.phase == Phase::kParked);
  EndSequence(sequence);
  ForgetEnded();
}

void Scheduler::Park(uint64_t key, int32_t sample) {
  RequestState& state = *requests_.at(key);
  Sequence& sequence = state.samples[sample];
  SYNCOPATE_CHECK(state.request.has_turns() && !sequence.drawn.empty() && sequence.phase != Phase::kEnded);
  if (sequence.phase != Phase::kParked) ParkSequence(sequence);
  ForgetEnded();
}

void Scheduler::ParkSequence(Sequence& sequence) {
  LeaveUnit(sequence);
  // A sequence that was preempted before its last token was known has no blocks.
  ReleaseHostBlocks(sequence);
  if (sequence.slot >= 0) ReleaseSlot(sequence);
  sequence.phase = Phase::kParked;
  ++parked_samples_;
  // Plans in progress may go beyond the end of the turn. Their draws do not count, nor do the positions of those
  // tokens.
  sequence.stale = sequence.undrawn;
  sequence.computed = ComputedAtPark(sequence.computed, KnownTokens(sequence));
  OfferBlocks(sequence);
}

void Scheduler::Rewind(uint64_t key, int32_t sample) {
  Sequence& sequence = requests_.at(key)->samples[sample];
  SYNCOPATE_CHECK(sequence.phase == Phase::kParked);
  KeepBlocks(sequence);
  ReleaseBlocks(sequence);  // what is indexed may be found again
  sequence.computed = 0;
  sequence.drawn.clear();
  sequence.turn_begin = 0;
}

bool Scheduler::MayExtend(uint64_t key, int32_t sample, int64_t tokens) const {
  auto found = requests_.find(key);
  if (found == requests_.end()) return false;
  const Sequence& sequence = found->second->samples[sample];
  return sequence.phase == Phase::kParked && (tokens > 0 || sequence.drawn.empty()) &&
         KnownTokens(sequence) + tokens < options_.max_context &&
         std::ssize(sequence.drawn) + tokens < found->second->request.max_total_tokens;
}

void Scheduler::Extend(uint64_t key, int32_t sample, absl::Span<const int32_t> given) {
  SYNCOPATE_CHECK(MayExtend(key, sample, std::ssize(given)));
  Sequence& sequence = requests_.at(key)->samples[sample];
  sequence.drawn.insert(sequence.drawn.end(), given.begin(), given.end());
  sequence.turn_begin = std::ssize(sequence.drawn);
  sequence.phase = Phase::kWaiting;
  --parked_samples_;
  waiting_.emplace(GetOrder(sequence), Unit{&sequence});
}

void Scheduler::OfferBlocks(Sequence& sequence) {
  if (sequence.table.empty() || sequence.offers) return;
  sequence.offers = true;
  offering_.push_back(&sequence);
  for (BlockIndex block : sequence.table) pool_.Offer(block);
}

void Scheduler::KeepBlocks(Sequence& sequence) {
  if (!std::exchange(sequence.offers, false)) return;
  std::erase(offering_, &sequence);
  for (BlockIndex block : sequence.table) pool_.Withdraw(block);
}

void Scheduler::GiveUpBlocks(Sequence& sequence) {
  KeepBlocks(sequence);
  ReleaseBlocks(sequence);
  sequence.computed = 0;
  ++counters_.given_up;
}

// Extended sequences need their blocks sooner than parked ones.
Scheduler::Sequence& Scheduler::LastOffering() const {
  return **std::max_element(offering_.begin(), offering_.end(), [](const Sequence* a, const Sequence* b) {
    const bool a_is_parked = a->phase == Phase::kParked, b_is_parked = b->phase == Phase::kParked;
    return a_is_parked != b_is_parked ? b_is_parked : GetOrder(*a) < GetOrder(*b);
  });
}

void Scheduler::SetVersion(const PolicyVersion& version) {
  version_ = version;
  pool_.ForgetOtherVersions(GetScope(/*adapter=*/0).version);
  // A sequence that only found a prefix of the older version, and computed nothing itself, starts again: it can then
  // use the new version from its first token. A prefix of an older version never continues under a newer one.
  const std::deque<Unit> started = std::exchange(prefilling_, {});
  for (const Unit& unit : started) {
    const Sequence& leader = *unit.front();
    if (leader.has_computed || leader.scope == ScopeOf(leader)) {
      prefilling_.push_back(unit);
    } else {
      PutBack(unit);
    }
  }
}

void Scheduler::Pin(uint64_t key, int64_t adapter, const PolicyVersion& version) {
  const auto found = requests_.find(key);
  if (found == requests_.end()) return;
  found->second->request.adapter = adapter;
  found->second->request.pinned = version;
}

PrefixScope Scheduler::ScopeOf(const Sequence& sequence) const {
  const Request& request = sequence.request->request;
  // What the policy of the same version has computed is shared.
  return request.pinned.IsNone() ? GetScope(request.adapter) : PrefixScope::Make(request.pinned, /*adapter=*/0);
}

void Scheduler::ForgetBlocks() {
  SYNCOPATE_CHECK(!HasRequests() && under_way_.empty());
  pool_.ForgetAll();
}

StepPlan Scheduler::Yield() {
  SYNCOPATE_CHECK(under_way_.empty() && !lent_ && !must_lend_);
  StepPlan plan;
  plan.version = version_;
  for (Sequence* sequence : std::vector<Sequence*>(offering_)) {
    if (LosesBlocksAtYield(*sequence)) GiveUpBlocks(*sequence);
  }
  counters_.yielded += running_sequences();
  const int64_t swaps = counters_.swaps;
  std::vector<Sequence*> decoding = std::exchange(decoding_, {});
  // Host memory goes to those that have waited longest, and so have most to lose.
  std::sort(decoding.begin(), decoding.end(),
            [](const Sequence* a, const Sequence* b) { return GetOrder(*a) < GetOrder(*b); });
  for (Sequence* sequence : decoding) {
    SwapOut(*sequence, plan);
    PutBack({sequence});
  }
  for (const Unit& unit : std::exchange(prefilling_, {})) PutBack(unit);
  counters_.yielded_swaps += std::exchange(counters_.swaps, swaps) - swaps;
  ForgetAllBlocks(pool_);
  if (plan.IsEmpty()) return plan;
  plan.id = ++last_plan_;
  under_way_.push_back({plan.id, {}});
  return plan;
}

void Scheduler::Lend() {
  if (lent_ || must_lend_) return;
  must_lend_ = true;
  if (running_sequences() > 0) return;
  // There may never be a plan that could copy the blocks of parked samples.
  for (Sequence* sequence : std::vector<Sequence*>(offering_)) {
    if (LosesLentBlocks(*sequence)) GiveUpBlocks(*sequence);
  }
  StepPlan nothing;
  CloseLent(nothing);
}

StepPlan Scheduler::PlanLend() {
  StepPlan plan;
  plan.version = version_;
  if (!must_lend_) return plan;
  CloseLent(plan);
  moved_.clear();
  if (plan.IsEmpty()) return plan;
  plan.id = last_use_ = ++last_plan_;
  under_way_.push_back({plan.id, {}});
  return plan;
}

bool Scheduler::LosesLentBlocks(const Sequence& sequence) const {
  return std::any_of(sequence.table.begin(), sequence.table.end(),
                     [this](BlockIndex block) { return block >= options_.blocks - options_.lent_blocks; });
}

void Scheduler::Return() {
  must_lend_ = false;
  if (std::exchange(lent_, false)) OpenReturned(pool_);
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  plan.version = version_;
  std::vector<Sequence*> draws, row_draws;
  // Offered blocks are free for those who run.
  const double offered = static_cast<double>(pool_.offered()) / static_cast<double>(pool_.open());
  concurrency_.Follow(block_usage() - offered, running_sequences());
  const bool closes = must_lend_;
  const bool preempts = closes && CloseLent(plan);
  // A plan that preempts admits nothing, or the preempted sequence could start again at once. Nor does one that moves
  // blocks: a parked sample could give up a block that this plan copies to.
  if (!MakeRoom(plan) && !preempts && moved_.empty()) Admit(plan);
  // Rows come before chunks: a sequence that draws from a chunk of this plan has its first row in the next plan.
  AddRows(plan, row_draws);
  AddChunks(plan, draws);
  moved_.clear();
  if (plan.IsEmpty()) return plan;
  draws.insert(draws.end(), row_draws.begin(), row_draws.end());
  for (Sequence* sequence : draws) {
    ++sequence->undrawn;
    ++sequence->request->draws_under_way;
  }
  plan.id = ++last_plan_;
  if (closes) last_use_ = plan.id;
  under_way_.push_back({plan.id, std::move(draws)});
  return plan;
}

std::vector<Scheduler::Drawn> Scheduler::Complete(int64_t plan, absl::Span<const int32_t> tokens) {
  SYNCOPATE_CHECK(!under_way_.empty() && under_way_.front().plan == plan);
  const std::vector<Sequence*> draws = std::move(under_way_.front().draws);
  under_way_.pop_front();
  SYNCOPATE_CHECK(draws.size() == tokens.size());
  std::vector<Drawn> counted;
  counted.reserve(draws.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    Sequence& sequence = *draws[i];
    RequestState& state = *sequence.request;
    --sequence.undrawn;
    if (--state.draws_under_way == 0 && state.live == 0) ended_.push_back(&state);
    // The plan may have been made before this sequence, or its turn, was known to have ended.
    if (sequence.phase == Phase::kEnded || IsStale(sequence)) {
      sequence.stale -= sequence.stale > 0 ? 1 : 0;
      ++counters_.thrown_away;
      continue;
    }
    sequence.drawn.push_back(tokens[i]);
    if (sequence.phase == Phase::kDecoding) IndexBlocks(sequence);
    counted.push_back(
        {state.request.key, sequence.sample, static_cast<int64_t>(i), MakeFinish(sequence, options_.max_context)});
    if (!counted.back().finish.has_value()) continue;
    if (state.request.has_turns()) {
      ParkSequence(sequence);
    } else {
      EndSequence(sequence);
    }
  }
  ForgetEnded();
  return counted;
}

int64_t Scheduler::MaxPositions(const Request& request) const {
  // The last token of an answer is never input, so it needs no position.
  const int64_t answer = request.has_turns() ? request.max_total_tokens : request.sampling->max_new_tokens;
  return std::min(static_cast<int64_t>(request.prompt->size()) + answer, options_.max_context) - 1;
}

int64_t Scheduler::MaxPositions(const Sequence& sequence) const {
  const int64_t prompt = static_cast<int64_t>(sequence.request->request.prompt->size());
  return prompt + MaxAnswerTokens(sequence, options_.max_context) - 1;
}

bool Scheduler::MayDraw(const Sequence& sequence) const {
  return sequence.phase == Phase::kDecoding && sequence.computed < MaxPositions(sequence);
}

bool Scheduler::MakeRoom(StepPlan& plan) {
  bool made = false;
  // The loop ends: the last remaining sequence writes to at most one block, and Check() made sure that it exists.
  while (BlocksForDecode() > pool_.available()) {
    if (MayTakeOffered()) {
      GiveUpBlocks(LastOffering());
      continue;
    }
    Preempt(*LastInOrder(), plan);
    made = true;
  }
  if (made) concurrency_.NotePreemption(running_sequences());
  return made;
}

bool Scheduler::CloseLent(StepPlan& plan) {
  must_lend_ = false;
  lent_ = true;
  last_use_ = last_plan_;  // if this plan moves nothing, the ones before it may still use them
  CloseFreeBlocks(pool_, static_cast<BlockIndex>(options_.blocks - options_.lent_blocks));
  ForgetKeptPrefixes(pool_);
  bool preempted = false;
  for (BlockIndex from : FindBlocksToMove(plan, &preempted)) {
    const BlockIndex to = pool_.Allocate();
    pool_.Move(from, to);
    plan.copies.push_back({from, to, TokensToMove()});
    moved_[to] = from;
    ++counters_.moved_blocks;
  }
  if (moved_.empty()) return preempted;
  std::map<BlockIndex, BlockIndex> places;
  for (const auto& [to, from] : moved_) places[from] = to;
  auto follow = [&](Sequence& sequence) {
    for (size_t i = 0; i < sequence.table.size(); ++i) {
      auto place = places.find(sequence.table[i]);
      if (place == places.end()) continue;
      sequence.table[i] = place->second;
      if (sequence.slot >= 0) plan.tables.push_back({sequence.slot, static_cast<int32_t>(i), place->second});
    }
  };
  for (Sequence* sequence : decoding_) follow(*sequence);
  for (const Unit& unit : prefilling_) follow(*unit.front());
  for (Sequence* sequence : offering_) follow(*sequence);
  return preempted;
}

std::vector<BlockIndex> Scheduler::FindBlocksToMove(StepPlan& plan, bool* preempted) {
  const auto find = [this] {
    std::vector<BlockIndex> used;
    for (int64_t block = pool_.open(); block < pool_.blocks(); ++block) {
      if (pool_.users(static_cast<BlockIndex>(block)) > 0) used.push_back(static_cast<BlockIndex>(block));
    }
    return used;
  };
  std::vector<BlockIndex> used = find();
  // The loop ends: without sequences and parked samples no block has a user. It also leaves room for the step's own
  // writes: a sequence that is preempted after the copies were planned would be swapped out before they are made.
  while (!used.empty() && (running_sequences() > 0 || MayTakeOffered()) &&
         MustPreempt(std::ssize(used) + BlocksForDecode(), pool_.available())) {
    if (MayTakeOffered()) {
      GiveUpBlocks(LastOffering());
    } else {
      Preempt(*LastInOrder(), plan);
      *preempted = true;
    }
    used = find();
  }
  if (*preempted) concurrency_.NotePreemption(running_sequences());
  used.resize(static_cast<size_t>(std::min(std::ssize(used), std::max<int64_t>(pool_.available(), 0))));
  return used;
}

bool Scheduler::MayRun(const Unit& unit) {
  // A `first` request blocks installs while it runs or waits, so it must not wait for the limit.
  if (!options_.follow_usage || unit.front()->request->request.first) return true;
  return concurrency_.Admits(running_sequences(), static_cast<int64_t>(unit.size()));
}

int64_t Scheduler::BlocksForDecode() {
  int64_t needed = 0;
  std::vector<BlockIndex> shared;
  for (const Sequence* sequence : decoding_) {
    if (!MayDraw(*sequence)) continue;
    const size_t index = static_cast<size_t>(sequence->computed / kBlockTokens);
    if (index == sequence->table.size()) {
      ++needed;
      continue;
    }
    // Each writer to a shared block takes a copy, except the last of its users.
    const BlockIndex block = sequence->table[index];
    const int32_t users = pool_.users(block);
    if (users == 1) continue;
    if (++writers_[block] < users) ++needed;
    shared.push_back(block);
  }
  for (BlockIndex block : shared) writers_[block] = 0;
  return needed;
}

Scheduler::Sequence* Scheduler::LastInOrder() const {
  std::vector<Sequence*> all = decoding_;
  for (const Unit& unit : prefilling_) all.push_back(unit.front());
  return *std::max_element(all.begin(), all.end(),
                           [](const Sequence* a, const Sequence* b) { return GetOrder(*a) < GetOrder(*b); });
}

void Scheduler::Preempt(Sequence& victim, StepPlan& plan) {
  ++counters_.preemptions;
  Unit unit = {&victim};
  if (victim.phase == Phase::kPrefilling) {
    auto found = std::find_if(prefilling_.begin(), prefilling_.end(),
                              [&](const Unit& other) { return other.front() == &victim; });
    unit = std::move(*found);
    prefilling_.erase(found);
  } else {
    std::erase(decoding_, &victim);
    SwapOut(victim, plan);
  }
  PutBack(unit);
}

void Scheduler::SwapOut(Sequence& sequence, StepPlan& plan) {
  if (options_.preemption != Preemption::kSwap || sequence.table.size() > free_host_blocks_.size()) return;
  ++counters_.swaps;
  for (BlockIndex block : sequence.table) {
    sequence.on_host.push_back(free_host_blocks_.back());
    free_host_blocks_.pop_back();
    plan.swaps_out.push_back({block, sequence.on_host.back()});
  }
}

void Scheduler::PutBack(const Unit& unit) {
  ReleaseBlocks(*unit.front());
  for (Sequence* sequence : unit) {
    ReleaseSlot(*sequence);
    sequence->phase = Phase::kWaiting;
  }
  waiting_.emplace(GetOrder(*unit.front()), unit);
}

void Scheduler::Admit(StepPlan& plan) {
  while (!waiting_.empty()) {
    const Unit& unit = waiting_.begin()->second;
    Sequence& leader = *unit.front();
    // The last draw of a preempted sequence may be in progress; its token is known for a later plan.
    if (leader.undrawn > 0 || unit.size() > free_slots_.size() || !MayRun(unit)) return;
    const std::optional<BlockPool::Prefix> prefix = FindRoom(unit);
    if (!prefix.has_value()) return;
    const Unit started = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    for (Sequence* sequence : started) TakeSlot(*sequence, plan);
    if (!leader.on_host.empty()) {
      SwapIn(leader, plan);
    } else if (!leader.table.empty()) {
      StartAgain(leader, plan);
    } else {
      Start(started, *prefix, plan);
    }
    CountOvertaken(leader.request->arrival);
    // The source of a copy may belong to parked samples alone now: nobody may get it in the plan that copies it.
    if (!plan.copies.empty()) return;
  }
}

BlockPool::Prefix Scheduler::FindPrefix(const Sequence& leader) const {
  if (!leader.on_host.empty() || !leader.table.empty()) return {};
  // At least one token is computed even if all are cached, because its logits are needed.
  const int64_t known = KnownTokens(leader);
  return pool_.Find(ScopeOf(leader), GetTokens(leader, 0, known), (known - 1) / kBlockTokens);
}

std::optional<BlockPool::Prefix> Scheduler::FindRoom(const Unit& unit) {
  Sequence& leader = *unit.front();
  KeepBlocks(leader);
  BlockPool::Prefix prefix = FindPrefix(leader);
  // Each running sequence needs a new block every kBlockTokens steps. Some room is left for them; otherwise a sequence
  // that starts now would soon be preempted.
  const int64_t spare = (running_sequences() + 1) / 2;
  const auto missing = [&] { return BlocksToStart(unit, prefix) + BlocksForDecode() + spare - pool_.available(); };
  // What giving up gains: blocks, except those that are in the prefix anyway, and the copy of a block that only they
  // share.
  const auto gain = [&] {
    const BlockIndex written = FirstWritten(leader);
    const bool copies = written >= 0 && pool_.users(written) > 1 && pool_.offers(written) == pool_.users(written) - 1;
    return pool_.offered() + (copies ? 1 : 0) -
           std::count_if(prefix.blocks.begin(), prefix.blocks.end(),
                         [this](BlockIndex block) { return pool_.IsOffered(block); });
  };
  // Nobody gives up blocks in vain.
  while (missing() > 0 && missing() <= gain()) {
    GiveUpBlocks(LastOffering());
    prefix = FindPrefix(leader);  // what was in use may be kept, or forgotten
  }
  if (missing() <= 0) return prefix;
  OfferBlocks(leader);
  return std::nullopt;
}

BlockIndex Scheduler::FirstWritten(const Sequence& sequence) const {
  const size_t index = static_cast<size_t>(sequence.computed / kBlockTokens);
  return index < sequence.table.size() ? sequence.table[index] : -1;
}

int64_t Scheduler::BlocksToStart(const Unit& unit, const BlockPool::Prefix& prefix) const {
  const Sequence& leader = *unit.front();
  const int64_t samples = static_cast<int64_t>(unit.size());
  const int64_t tokens = leader.on_host.empty() ? KnownTokens(leader) : leader.computed;
  int64_t to_write = tokens < MaxPositions(leader) ? BlocksToWrite(tokens, samples) : 0;
  if (!leader.table.empty()) {
    // Its given tokens go into its last block, or into a copy of that if others use it too.
    const BlockIndex written = FirstWritten(leader);
    to_write += written >= 0 && pool_.users(written) > 1 ? 1 : 0;
    to_write -= std::ssize(leader.table);
  }
  // Prefix blocks without a user count as available in the pool until they are taken.
  return Blocks(tokens) - static_cast<int64_t>(prefix.blocks.size()) + prefix.kept + to_write;
}

void Scheduler::TakeSlot(Sequence& sequence, StepPlan& plan) {
  const Request& request = sequence.request->request;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  plan.starts.push_back({sequence.slot, request.key, sequence.sample, request.seeds[sequence.sample], request.prompt,
                         request.sampling, sequence.drawn, request.adapter});
}

void Scheduler::Start(const Unit& unit, const BlockPool::Prefix& prefix, StepPlan& plan) {
  Sequence& leader = *unit.front();
  const size_t blocks = static_cast<size_t>(Blocks(KnownTokens(leader)));
  for (BlockIndex block : prefix.blocks) AddUser(block);  // takes the prefix before Allocate() could reuse its blocks
  leader.table = prefix.blocks;
  while (leader.table.size() < blocks) leader.table.push_back(pool_.Allocate());
  for (size_t i = 0; i < blocks; ++i) plan.tables.push_back({leader.slot, static_cast<int32_t>(i), leader.table[i]});
  leader.scope = ScopeOf(leader);
  leader.indexed = static_cast<int64_t>(prefix.blocks.size());
  leader.node = prefix.end;
  leader.computed = leader.indexed * kBlockTokens;
  leader.has_computed = false;
  counters_.shared_tokens += leader.computed;
  counters_.prompt_tokens += KnownTokens(leader);
  for (Sequence* sequence : unit) sequence->phase = Phase::kPrefilling;
  prefilling_.push_back(unit);
}

void Scheduler::StartAgain(Sequence& sequence, StepPlan& plan) {
  for (size_t i = 0; i < sequence.table.size(); ++i) {
    plan.tables.push_back({sequence.slot, static_cast<int32_t>(i), sequence.table[i]});
  }
  MakeWritable(sequence, plan);
  const int64_t known = KnownTokens(sequence);
  while (std::ssize(sequence.table) < Blocks(known)) {
    plan.tables.push_back({sequence.slot, static_cast<int32_t>(sequence.table.size()), pool_.Allocate()});
    sequence.table.push_back(plan.tables.back().block);
  }
  sequence.has_computed = true;
  counters_.shared_tokens += sequence.computed;
  counters_.prompt_tokens += known;
  sequence.phase = Phase::kPrefilling;
  prefilling_.push_back({&sequence});
}

void Scheduler::SwapIn(Sequence& sequence, StepPlan& plan) {
  for (size_t i = 0; i < sequence.on_host.size(); ++i) {
    sequence.table.push_back(pool_.Allocate());
    plan.swaps_in.push_back({sequence.table[i], sequence.on_host[i]});
    plan.tables.push_back({sequence.slot, static_cast<int32_t>(i), sequence.table[i]});
    free_host_blocks_.push_back(sequence.on_host[i]);
  }
  sequence.on_host.clear();
  sequence.scope.reset();  // several versions may have computed parts of it
  sequence.phase = Phase::kDecoding;
  decoding_.push_back(&sequence);
}

// Counts that `arrival` has just started before each waiting request that arrived earlier.
void Scheduler::CountOvertaken(int64_t arrival) {
  std::set<RequestState*> counted;
  for (auto& [order, unit] : waiting_) {
    RequestState* state = unit.front()->request;
    if (state->arrival < arrival) counted.insert(state);
  }
  for (RequestState* state : counted) {
    if (!HasWaitedEnough(++state->passed_over) || state->overtaken) continue;
    state->overtaken = true;
    // The order of these units has changed, so their keys in `waiting_` must change too.
    for (auto unit = waiting_.begin(); unit != waiting_.end();) {
      auto next = std::next(unit);
      if (unit->second.front()->request == state) {
        auto moved = waiting_.extract(unit);
        moved.key() = GetOrder(*moved.mapped().front());
        waiting_.insert(std::move(moved));
      }
      unit = next;
    }
  }
}

void Scheduler::AddRows(StepPlan& plan, std::vector<Sequence*>& draws) {
  for (Sequence* sequence : decoding_) {
    if (!MayDraw(*sequence)) continue;
    MakeWritable(*sequence, plan);
    plan.rows.push_back({sequence->slot, static_cast<int32_t>(sequence->computed)});
    draws.push_back(sequence);
    ++sequence->computed;
  }
}

// Makes sure that the block of the next written position exists and has no other user.
void Scheduler::MakeWritable(Sequence& sequence, StepPlan& plan) {
  const size_t index = static_cast<size_t>(sequence.computed / kBlockTokens);
  if (index == sequence.table.size()) {
    sequence.table.push_back(pool_.Allocate());
  } else if (const BlockIndex shared = sequence.table[index]; IsShared(shared)) {
    const BlockIndex own = pool_.Allocate();
    // A block that this plan itself moves here has its contents at its old place yet.
    const auto old = moved_.find(shared);
    plan.copies.push_back(
        {old != moved_.end() ? old->second : shared, own, static_cast<int32_t>(sequence.computed % kBlockTokens)});
    RemoveUser(shared);
    sequence.table[index] = own;
  } else {
    return;
  }
  plan.tables.push_back({sequence.slot, static_cast<int32_t>(index), sequence.table[index]});
}

bool Scheduler::GathersChunks(const StepPlan& plan) {
  if (prefilling_.empty()) return false;
  int64_t tokens = 0, samples = 0;
  for (const Unit& unit : prefilling_) {
    tokens += KnownTokens(*unit.front()) - unit.front()->computed;
    samples += std::ssize(unit);
  }
  const bool may_wait = tokens < options_.max_prefill_tokens && gathering_plans_ < options_.max_gathering_plans &&
                        samples * options_.decoding_to_gathering <= std::ssize(plan.rows);
  gathering_plans_ = may_wait ? gathering_plans_ + 1 : 0;
  return may_wait;
}

void Scheduler::AddChunks(StepPlan& plan, std::vector<Sequence*>& draws) {
  if (GathersChunks(plan)) return;
  int64_t budget = options_.max_prefill_tokens;
  while (budget > 0 && !prefilling_.empty()) {
    const Unit& unit = prefilling_.front();
    Sequence& leader = *unit.front();
    const int64_t known = KnownTokens(leader), end = std::min(known, leader.computed + budget);
    PrefillChunk chunk{leader.slot, static_cast<int32_t>(leader.computed), GetTokens(leader, leader.computed, end), {}};
    budget -= end - leader.computed;
    counters_.prefilled_tokens += end - leader.computed;
    leader.computed = end;
    leader.has_computed = true;
    IndexBlocks(leader);
    const bool complete = end == known;
    if (complete) {
      Fork(unit, chunk, plan);
      draws.insert(draws.end(), unit.begin(), unit.end());
      prefilling_.pop_front();
    }
    plan.chunks.push_back(std::move(chunk));
  }
}

// Completes the prompt with `chunk`: all samples draw from its last token and share its blocks.
void Scheduler::Fork(const Unit& unit, PrefillChunk& chunk, StepPlan& plan) {
  const Sequence& leader = *unit.front();
  for (Sequence* sequence : unit) {
    chunk.draws.push_back(sequence->slot);
    sequence->phase = Phase::kDecoding;
    decoding_.push_back(sequence);
    if (sequence == &leader) continue;
    sequence->table = leader.table;
    for (size_t i = 0; i < leader.table.size(); ++i) {
      AddUser(leader.table[i]);
      plan.tables.push_back({sequence->slot, static_cast<int32_t>(i), leader.table[i]});
    }
    sequence->computed = leader.computed;
    sequence->scope = leader.scope;
    sequence->indexed = leader.indexed;
    sequence->node = leader.node;
  }
}

void Scheduler::IndexBlocks(Sequence& sequence) {
  // After an install the blocks of a running sequence mix two versions: no other sequence may continue from them.
  if (!sequence.scope.has_value() || *sequence.scope != ScopeOf(sequence)) return;
  const int64_t full = std::min(sequence.computed, KnownTokens(sequence)) / kBlockTokens;
  for (; sequence.indexed < full; ++sequence.indexed) {
    const int64_t begin = sequence.indexed * kBlockTokens;
    sequence.node = pool_.Index(*sequence.scope, sequence.node, GetTokens(sequence, begin, begin + kBlockTokens),
                                sequence.table[sequence.indexed]);
  }
}

void Scheduler::EndSequence(Sequence& sequence) {
  LeaveUnit(sequence);
  KeepBlocks(sequence);
  ReleaseBlocks(sequence);
  ReleaseHostBlocks(sequence);
  if (sequence.slot >= 0) ReleaseSlot(sequence);
  sequence.phase = Phase::kEnded;
  --live_samples_;
  RequestState& state = *sequence.request;
  if (--state.live == 0 && state.draws_under_way == 0) ended_.push_back(&state);
}

void Scheduler::LeaveUnit(Sequence& sequence) {
  if (sequence.phase == Phase::kDecoding) {
    decoding_has_ended_ = true;  // ForgetEnded() removes all ended sequences of a step in one pass
    return;
  }
  if (sequence.phase == Phase::kParked) {
    --parked_samples_;
    return;
  }
  for (auto unit = waiting_.begin(); unit != waiting_.end(); ++unit) {
    if (std::erase(unit->second, &sequence) == 0) continue;
    if (unit->second.empty()) waiting_.erase(unit);
    return;
  }
  for (auto unit = prefilling_.begin(); unit != prefilling_.end(); ++unit) {
    if (std::erase(*unit, &sequence) == 0) continue;
    if (unit->empty()) prefilling_.erase(unit);
    return;
  }
}

void Scheduler::ReleaseBlocks(Sequence& sequence) {
  // Releases the last block first, so that the first blocks of a prefix, on which the others depend, are reused last.
  for (auto block = sequence.table.rbegin(); block != sequence.table.rend(); ++block) RemoveUser(*block);
  sequence.table.clear();
}

void Scheduler::ReleaseHostBlocks(Sequence& sequence) {
  free_host_blocks_.insert(free_host_blocks_.end(), sequence.on_host.begin(), sequence.on_host.end());
  sequence.on_host.clear();
}

void Scheduler::ReleaseSlot(Sequence& sequence) {
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
}

void Scheduler::ForgetEnded() {
  if (std::exchange(decoding_has_ended_, false)) {
    std::erase_if(decoding_, [](const Sequence* sequence) { return sequence->phase != Phase::kDecoding; });
  }
  for (RequestState* state : ended_) requests_.erase(state->request.key);
  ended_.clear();
}

}  // namespace syncopate::rollouter
