#include "bench/sync/step_costs.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "bench/process/json_fields.h"

namespace syncopate::bench {

using nlohmann::json;

StepCosts ReadStepCosts(const std::string& lines, int published_every, int64_t after_step) {
  std::vector<double> waits, stages, beside, calm;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || TextIn(record, "kind") != "step") continue;
    const int64_t step = IntegerIn(record, "step");
    if (step <= after_step) continue;
    if (step % published_every == 0) {
      const double stage = NumberIn(record, "stage_seconds");
      stages.push_back(stage);
      // A trainer that stages beside its next step says for how long that step had to wait; else it waited for all of
      // it.
      waits.push_back(NumberIn(record, "stage_wait_seconds", stage));
    }
    const double busy = NumberIn(record, "forward_backward_seconds") + NumberIn(record, "optimizer_seconds");
    // The step after a publication runs beside what its version costs: the staging, the transfer, or both.
    (step % published_every == 1 % published_every ? beside : calm).push_back(busy);
  }
  return {.wait_seconds = ComputeSpread(std::move(waits)),
          .stage_seconds = ComputeSpread(std::move(stages)),
          .beside_seconds = ComputeSpread(std::move(beside)),
          .calm_seconds = ComputeSpread(std::move(calm))};
}

}  // namespace syncopate::bench
