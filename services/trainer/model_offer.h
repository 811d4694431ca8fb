#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/run_model.h"
#include "syncopate/v1/trainer.pb.h"

namespace syncopate::trainerd {

// The trainer's answer to GetModel, in memory: the description of the run's model, and the files that define how it
// reads and writes text. Immutable.
class ModelOffer {
 public:
  static constexpr int64_t kChunkBytes = 1 << 20;

  // `wire` is the manifest of the weights as they are sent. Reads the files; missing files are left out.
  static absl::StatusOr<std::shared_ptr<const ModelOffer>> Make(const std::string& run_id,
                                                                const config::RunModel& model, const Manifest& wire);

  const v1::ModelDescription& description() const { return description_; }

  // The messages of one answer, one after the other.
  class Reader {
   public:
    // Files with a SHA-256 in `known` are left out.
    Reader(std::shared_ptr<const ModelOffer> offer, std::set<std::string> known)
        : offer_(std::move(offer)), known_(std::move(known)) {}
    // False when there are no more.
    bool Next(v1::GetModelResponse* message);

   private:
    const std::shared_ptr<const ModelOffer> offer_;
    const std::set<std::string> known_;
    bool described_ = false;
    size_t file_ = 0;
    size_t offset_ = 0;
  };

 private:
  ModelOffer() = default;

  v1::ModelDescription description_;
  std::vector<std::string> contents_;  // the contents of description_.files()
};

}  // namespace syncopate::trainerd
