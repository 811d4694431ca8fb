#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/status.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/phase_times.h"
#include "trainer/loop/run_observer.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Stages and publishes versions of the policy and remembers the last one. Used by the step thread alone; `version` is
// always the policy's present version.
class PolicyPublisher {
 public:
  // All borrowed; they must outlive this.
  struct Parts {
    Policy* policy;
    WeightStager* stager;  // of `policy`
    TrainingData* data;
    RunObserver* observer;
    PhaseTimes* phases;
    std::function<void(Publication)> publish;  // tells the synchronizer of a staged version; does not block
  };
  explicit PolicyPublisher(Parts parts) : parts_(std::move(parts)) {}

  // Stages and publishes the present weights, unless they are published already. NON_FINITE: training has spoilt them.
  absl::Status Publish(const PolicyVersion& version);
  // OK if the present weights may be saved and exported. Staging checks every published version, but not every step is
  // published. NON_FINITE names the tensor.
  absl::Status CheckWeights(const PolicyVersion& version) const;
  const PolicyVersion& published() const { return published_.version; }  // none: nothing yet
  // Seconds that staging `version` took; 0.0 for a version that was not published.
  double StageSeconds(const PolicyVersion& version) const {
    return published_.version == version ? published_.seconds : 0.0;
  }
  // The digest of `version` as it travels, which depends on the wire's dtype and on the receivers' layout; none for a
  // version that was not published.
  std::optional<uint64_t> PublishedDigest(const PolicyVersion& version) const {
    return published_.version == version ? std::optional(published_.digest) : std::nullopt;
  }

 private:
  const Parts parts_;
  WeightStager::Staged published_;
};

}  // namespace syncopate::trainer
