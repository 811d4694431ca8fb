#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

// The samples of a run (samples.jsonl and samples.1.jsonl of its directory), newest first, as the page of a run shows
// and searches them.
namespace syncopate::report {

// What is looked for; a sample must meet all of it. Unset bounds and empty texts ask for nothing.
struct SampleQuery {
  // A part of the prompt, the answer, the expected or extracted answer, the name of a part of the reward, the outcome,
  // or where the sample comes from. ASCII letters match in either case.
  std::string text;
  std::string kind;     // "train", "supervised", "eval" or "drop"
  std::string outcome;  // "trained", "masked", ...
  std::optional<int64_t> step_from, step_to;
  std::optional<double> reward_from, reward_to;
};

// Reads a query of a URL: q, kind, outcome, step_from, step_to, reward_from, reward_to. INVALID_ARGUMENT (reason
// BAD_QUERY), naming the key, for a number that is none or an escape that is none.
absl::StatusOr<SampleQuery> ReadSampleQuery(absl::string_view query);

// Whether the sample, a line of the file, is what is looked for.
bool Matches(const SampleQuery& query, const nlohmann::json& sample);
// False only if no sample on this line can be what is looked for: cheaper than to parse it.
bool MayMatch(const SampleQuery& query, absl::string_view line);

// Where a page of samples begins: behind a byte of the file with this inode, which keeps it when it becomes the older
// one. Empty: the newest sample.
struct SamplePlace {
  uint64_t inode = 0;
  int64_t offset = 0;
};
std::string ToText(const SamplePlace& place);                         // "INODE-OFFSET"
std::optional<SamplePlace> ReadSamplePlace(absl::string_view place);  // nullopt if it is none

struct SampleSearch {
  SampleQuery query = {};
  std::optional<SamplePlace> from = std::nullopt;
  size_t most = 20;                                 // samples of the answer
  absl::Duration within = absl::Milliseconds(200);  // what is not found by then is left to the next page
};

// {"samples": newest first, without ids and with long texts cut; "next": where to go on, "" at the oldest sample;
// "complete": false if time ended the search; "searched_bytes"; "available": there is such a file}. Lines that are no
// samples are passed over. Memory is bounded by the answer and one line. Blocks for the disk, for about `within`.
nlohmann::json FindSamples(const std::string& run_dir, const SampleSearch& search, const Clock& clock = *Clock::Real());

}  // namespace syncopate::report
