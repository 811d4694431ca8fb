#include "trainer/data/ledger_options.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {

absl::Status LedgerOptions::Validate() const {
  auto bad = [](const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", text); };
  SYNCOPATE_RETURN_IF_ERROR(gate.Validate());
  if (max_groups < 0) return bad(absl::StrCat("max_groups is ", max_groups, ", but cannot be negative"));
  if (vocab_size < 0) return bad(absl::StrCat("vocab_size is ", vocab_size, ", but cannot be negative"));
  if (samples < 1) return bad(absl::StrCat("samples is ", samples, ", but a group has at least 1"));
  if (sampling.max_new_tokens < 1) return bad("max_new_tokens must be at least 1");
  if (!(sampling.temperature > 0)) return bad("training samples need a temperature above 0");
  if (!sampling.DrawsFromThePolicy()) {
    return bad(
        "training leases take no top-k, top-p, min-p, penalties, bias or allowed tokens: behaviour "
        "log-probabilities are those of the policy over the whole vocabulary");
  }
  if (refill_zero_variance && samples < 2) return bad("refill_zero_variance needs groups of at least 2 samples");
  if (partial_bytes < 0) return bad("partial_bytes must not be negative");
  if (max_failures < 1) return bad("max_failures must be at least 1");
  if (max_reward_failures < 0) return bad("max_reward_failures must not be negative");
  if (supervised_steps < 0) return bad("supervised_steps cannot be negative");
  return lease_limits.Validate();
}

Lease MakeLease(const LedgerOptions& options, const LeaseId& id, const PolicyVersion& version, Prompt prompt) {
  Lease lease;
  lease.id = id;
  lease.version = version;
  lease.samples = options.samples;
  lease.prompt_ids = std::move(prompt.prompt_ids);
  lease.answer_ids = std::move(prompt.answer_ids);
  lease.task = std::move(prompt.task);
  lease.reward = options.reward;
  lease.sampling = options.sampling;
  lease.seed = GroupSeed(options.run_seed, id.group);
  return lease;
}

}  // namespace syncopate::trainer
