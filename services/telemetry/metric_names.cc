#include "services/telemetry/metric_names.h"

#include <algorithm>

namespace syncopate::telemetry {

void PublishBuildInfo(prometheus::Registry& registry, const std::string& version, const std::string& role) {
  prometheus::BuildGauge()
      .Name("syncopate_build_info")
      .Help("Always 1; the labels say what runs")
      .Register(registry)
      .Add({{"version", version}, {"role", role}})
      .Set(1);
}

PolicyVersionMetric::PolicyVersionMetric(prometheus::Registry& registry, const std::string& role)
    : step_(prometheus::BuildGauge()
                .Name("syncopate_policy_version_step")
                .Help("Training step of the newest policy version that this role has")
                .Register(registry)
                .Add({{"role", role}})),
      epoch_(prometheus::BuildGauge()
                 .Name("syncopate_policy_version_epoch")
                 .Help("Epoch of the newest policy version that this role has")
                 .Register(registry)
                 .Add({{"role", role}})) {}

void PolicyVersionMetric::Set(const PolicyVersion& version) {
  step_.Set(static_cast<double>(version.step));
  epoch_.Set(static_cast<double>(version.epoch));
}

LabelledCounter::LabelledCounter(prometheus::Registry& registry, const std::string& name, const std::string& help,
                                 const std::string& label, const std::vector<std::string>& values) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  // All series start at 0, so that rate() sees the first increment. The last value counts all that have no name here.
  for (const std::string& value : values) other_ = counters_[value] = &family.Add({{label, value}});
}

void LabelledCounter::Increment(const std::string& value, double by) {
  auto found = counters_.find(value);
  (found == counters_.end() ? other_ : found->second)->Increment(by);
}

void LabelledCounter::RaiseTo(const std::string& value, double total) {
  // A counter must never fall: a lower total is ignored, such as that of a source which has restarted.
  prometheus::Counter& counter = *counters_.at(value);
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

LabelledFlags::LabelledFlags(prometheus::Registry& registry, const std::string& name, const std::string& help,
                             const std::string& label, const std::vector<std::string>& values) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  for (const std::string& value : values) gauges_[value] = &family.Add({{label, value}});
}

void LabelledFlags::Set(const std::vector<std::string>& raised) {
  for (auto& [value, gauge] : gauges_) {
    gauge->Set(std::count(raised.begin(), raised.end(), value) > 0 ? 1 : 0);
  }
}

LabelledGauge::LabelledGauge(prometheus::Registry& registry, const std::string& name, const std::string& help,
                             const std::string& label, const std::vector<std::string>& values) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  for (const std::string& value : values) gauges_.push_back(&family.Add({{label, value}}));
}

void LabelledGauge::Set(const std::vector<double>& values) {
  for (size_t i = 0; i < gauges_.size(); ++i) gauges_[i]->Set(i < values.size() ? values[i] : 0);
}

prometheus::Gauge& AddGauge(prometheus::Registry& registry, const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Counter& AddCounter(prometheus::Registry& registry, const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

}  // namespace syncopate::telemetry
