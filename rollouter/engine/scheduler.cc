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
      max_sequences > 0 && max_prefill_tokens > 0 && max_context > 0 && max_passed_over > 0) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrCat("Scheduler: blocks ", blocks, ", max_sequences ", max_sequences, ", max_prefill_tokens ",
                            max_prefill_tokens, ", max_context ", max_context, " and max_passed_over ", max_passed_over,
                            " must be positive, host_blocks ", host_blocks, " and max_kept_blocks ", max_kept_blocks,
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
    return BadRequest(absl::StrCat("the prompt has ", length, " tokens; the context holds ", options_.max_context,
                                   ", which must leave room for an answer"));
  }
  if (samples == 0 || samples > options_.max_sequences) {
    return BadRequest(absl::StrCat(samples, " samples asked for, 1 to ", options_.max_sequences, " fit"));
  }
  if (request.sampling->max_new_tokens <= 0) return BadRequest("max_new_tokens must be positive");
  const int64_t longest = MaxPositions(request);
  const int64_t to_start = Blocks(length) + (length < longest ? BlocksToWrite(length, samples) : 0);
  const int64_t needed = std::max(Blocks(longest), to_start);
  if (needed <= options_.blocks) return absl::OkStatus();
  return BadRequest(absl::StrCat("the request needs keys and values for ", needed * kBlockTokens,
                                 " tokens at once, this engine has memory for ", options_.blocks * kBlockTokens,
                                 "; ask for a shorter answer or fewer samples"));
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
  waiting_.emplace(GetOrder(*unit.front()), std::move(unit));
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
  SYNCOPATE_CHECK(!sequence.drawn.empty());
  EndSequence(sequence);
  ForgetEnded();
}

void Scheduler::SetVersion(const PolicyVersion& version) {
  SYNCOPATE_CHECK(under_way_.empty());
  version_ = version;
  pool_.ForgetOtherVersions(GetScope(/*adapter=*/0).version);
  // A sequence that only found a prefix of the older version, and computed nothing itself, starts again: it can then
  // use the new version from its first token. A prefix of an older version never continues under a newer one.
  const std::deque<Unit> started = std::exchange(prefilling_, {});
  for (const Unit& unit : started) {
    if (unit.front()->has_computed) {
      prefilling_.push_back(unit);
    } else {
      PutBack(unit);
    }
  }
}

void Scheduler::ForgetBlocks() {
  SYNCOPATE_CHECK(!HasWork() && under_way_.empty());
  pool_.ForgetAll();
}

void Scheduler::Lend() {
  if (lent_ || must_lend_) return;
  must_lend_ = true;
  if (running_sequences() > 0) return;
  StepPlan nothing;
  CloseLent(nothing);
}

void Scheduler::Return() {
  must_lend_ = false;
  if (std::exchange(lent_, false)) pool_.Reopen();
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  plan.version = version_;
  std::vector<Sequence*> draws, row_draws;
  concurrency_.Follow(block_usage(), running_sequences());
  const bool closes = must_lend_;
  const bool preempts = closes && CloseLent(plan);
  // A plan that preempts admits nothing, or the preempted sequence could start again at once.
  if (!MakeRoom(plan) && !preempts) Admit(plan);
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
    // The plan may have been made before this sequence was known to have ended.
    if (sequence.phase == Phase::kEnded) {
      ++counters_.thrown_away;
      continue;
    }
    sequence.drawn.push_back(tokens[i]);
    if (sequence.phase == Phase::kDecoding) IndexBlocks(sequence);
    counted.push_back(
        {state.request.key, sequence.sample, static_cast<int64_t>(i), MakeFinish(sequence, options_.max_context)});
    if (counted.back().finish.has_value()) EndSequence(sequence);
  }
  ForgetEnded();
  return counted;
}

int64_t Scheduler::MaxPositions(const Request& request) const {
  // The last token of an answer is never input, so it needs no position.
  const int64_t wanted = static_cast<int64_t>(request.prompt->size()) + request.sampling->max_new_tokens - 1;
  return std::min(wanted, options_.max_context - 1);
}

bool Scheduler::MayDraw(const Sequence& sequence) const {
  return sequence.phase == Phase::kDecoding && sequence.computed < MaxPositions(sequence.request->request);
}

bool Scheduler::MakeRoom(StepPlan& plan) {
  bool made = false;
  // The loop ends: the last remaining sequence writes to at most one block, and Check() made sure that it exists.
  while (BlocksForDecode() > pool_.available()) {
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
      plan.tables.push_back({sequence.slot, static_cast<int32_t>(i), place->second});
    }
  };
  for (Sequence* sequence : decoding_) follow(*sequence);
  for (const Unit& unit : prefilling_) follow(*unit.front());
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
  // The loop ends: without sequences no block has a user. It also leaves room for the step's own writes, because a sequence
  // that is preempted after the copies were planned would be swapped out before they are made.
  while (!used.empty() && running_sequences() > 0 &&
         MustPreempt(std::ssize(used) + BlocksForDecode(), pool_.available())) {
    Preempt(*LastInOrder(), plan);
    *preempted = true;
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
    if (options_.preemption == Preemption::kSwap && victim.table.size() <= free_host_blocks_.size()) {
      ++counters_.swaps;
      for (BlockIndex block : victim.table) {
        victim.on_host.push_back(free_host_blocks_.back());
        free_host_blocks_.pop_back();
        plan.swaps_out.push_back({block, victim.on_host.back()});
      }
    }
  }
  PutBack(unit);
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
    BlockPool::Prefix prefix;
    if (leader.on_host.empty()) {
      // At least one token is computed even if all are cached, because its logits are needed.
      const int64_t known = KnownTokens(leader);
      prefix = pool_.Find(GetScope(leader.request->request.adapter), GetTokens(leader, 0, known),
                          (known - 1) / kBlockTokens);
    }
    // Each running sequence needs a new block every kBlockTokens steps. Some room is left for them; otherwise a
    // sequence that starts now would soon be preempted.
    const int64_t running = running_sequences();
    if (BlocksToStart(unit, prefix) + BlocksForDecode() + (running + 1) / 2 > pool_.available()) return;
    const Unit started = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    for (Sequence* sequence : started) TakeSlot(*sequence, plan);
    if (leader.on_host.empty()) {
      Start(started, prefix, plan);
    } else {
      SwapIn(leader, plan);
    }
    CountOvertaken(leader.request->arrival);
  }
}

int64_t Scheduler::BlocksToStart(const Unit& unit, const BlockPool::Prefix& prefix) const {
  const Sequence& leader = *unit.front();
  const int64_t samples = static_cast<int64_t>(unit.size());
  const int64_t tokens = leader.on_host.empty() ? KnownTokens(leader) : leader.computed;
  const int64_t to_write = tokens < MaxPositions(leader.request->request) ? BlocksToWrite(tokens, samples) : 0;
  // Prefix blocks without a user count as available in the pool until they are taken.
  return Blocks(tokens) - static_cast<int64_t>(prefix.blocks.size()) + prefix.kept + to_write;
}

void Scheduler::TakeSlot(Sequence& sequence, StepPlan& plan) {
  const Request& request = sequence.request->request;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  plan.starts.push_back({sequence.slot, request.key, sequence.sample, request.seeds[sequence.sample], request.prompt,
                         request.sampling, sequence.drawn});
}

void Scheduler::Start(const Unit& unit, const BlockPool::Prefix& prefix, StepPlan& plan) {
  Sequence& leader = *unit.front();
  const size_t blocks = static_cast<size_t>(Blocks(KnownTokens(leader)));
  for (BlockIndex block : prefix.blocks) AddUser(block);  // takes the prefix before Allocate() could reuse its blocks
  leader.table = prefix.blocks;
  while (leader.table.size() < blocks) leader.table.push_back(pool_.Allocate());
  for (size_t i = 0; i < blocks; ++i) plan.tables.push_back({leader.slot, static_cast<int32_t>(i), leader.table[i]});
  leader.scope = GetScope(leader.request->request.adapter);
  leader.indexed = static_cast<int64_t>(prefix.blocks.size());
  leader.node = prefix.end;
  leader.computed = leader.indexed * kBlockTokens;
  leader.has_computed = false;
  counters_.shared_tokens += leader.computed;
  counters_.prompt_tokens += KnownTokens(leader);
  for (Sequence* sequence : unit) sequence->phase = Phase::kPrefilling;
  prefilling_.push_back(unit);
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

void Scheduler::AddChunks(StepPlan& plan, std::vector<Sequence*>& draws) {
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
  if (!sequence.scope.has_value() || *sequence.scope != GetScope(sequence.request->request.adapter)) return;
  const int64_t full = std::min(sequence.computed, KnownTokens(sequence)) / kBlockTokens;
  for (; sequence.indexed < full; ++sequence.indexed) {
    const int64_t begin = sequence.indexed * kBlockTokens;
    sequence.node = pool_.Index(*sequence.scope, sequence.node, GetTokens(sequence, begin, begin + kBlockTokens),
                                sequence.table[sequence.indexed]);
  }
}

void Scheduler::EndSequence(Sequence& sequence) {
  LeaveUnit(sequence);
  ReleaseBlocks(sequence);
  free_host_blocks_.insert(free_host_blocks_.end(), sequence.on_host.begin(), sequence.on_host.end());
  sequence.on_host.clear();
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

void Scheduler::ReleaseSlot(Sequence& sequence) {
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
}

void Scheduler::ForgetEnded() {
  if (std::exchange(decoding_has_ended_, false)) {
    std::erase_if(decoding_, [](const Sequence* sequence) { return sequence->phase == Phase::kEnded; });
  }
  for (RequestState* state : ended_) requests_.erase(state->request.key);
  ended_.clear();
}

}  // namespace syncopate::rollouter
