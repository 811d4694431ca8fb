#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <string>
#include <vector>

#include "base/policy_version.h"

// Metrics that several components publish. There is one registry per process, made in main and passed by reference; it
// outlives every metrics object. All methods of metrics objects are thread-safe and do not block.
namespace syncopate::telemetry {

// syncopate_build_info{version, role} 1.
void PublishBuildInfo(prometheus::Registry& registry, const std::string& version, const std::string& role);

// syncopate_policy_version_step{role} and syncopate_policy_version_epoch{role}.
class PolicyVersionMetric {
 public:
  PolicyVersionMetric(prometheus::Registry& registry, const std::string& role);
  void Set(const PolicyVersion& version);

 private:
  prometheus::Gauge& step_;
  prometheus::Gauge& epoch_;
};

// A counter family with one label whose values are all known from the start and begin at 0.
class LabelledCounter {
 public:
  LabelledCounter(prometheus::Registry& registry, const std::string& name, const std::string& help,
                  const std::string& label, const std::vector<std::string>& values);
  // An unknown value is counted under the last value, so that the number of values never grows.
  void Increment(const std::string& value, double by = 1);
  // Raises one value's counter to `total`, which is kept elsewhere; a lower total changes nothing. Call from one thread
  // at a time.
  void RaiseTo(const std::string& value, double total);

 private:
  std::map<std::string, prometheus::Counter*> counters_;
  prometheus::Counter* other_ = nullptr;
};

// A gauge family with one label whose values are all known from the start; each is 1 or 0.
class LabelledFlags {
 public:
  LabelledFlags(prometheus::Registry& registry, const std::string& name, const std::string& help,
                const std::string& label, const std::vector<std::string>& values);
  // Sets the named values to 1 and all others to 0.
  void Set(const std::vector<std::string>& raised);

 private:
  std::map<std::string, prometheus::Gauge*> gauges_;
};

// A gauge family with one label whose values are all known from the start and begin at 0.
class LabelledGauge {
 public:
  LabelledGauge(prometheus::Registry& registry, const std::string& name, const std::string& help,
                const std::string& label, const std::vector<std::string>& values);
  // Takes the values in the order of the labels; labels without a value become 0.
  void Set(const std::vector<double>& values);

 private:
  std::vector<prometheus::Gauge*> gauges_;
};

// A gauge without labels.
prometheus::Gauge& AddGauge(prometheus::Registry& registry, const std::string& name, const std::string& help);
// A counter without labels.
prometheus::Counter& AddCounter(prometheus::Registry& registry, const std::string& name, const std::string& help);

}  // namespace syncopate::telemetry
