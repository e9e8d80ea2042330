#include "tests/support/parameter_table.h"

#include <algorithm>
#include <utility>

namespace engine::test {

template <typename Copy>
void ParameterTable::ForEachPart(const Request& request, const Copy& copy) const {
  if (!request.rows) return copy(0, request.transfer.count);
  const int64_t row = buckets_.at(request.transfer.key).row;
  for (const int32_t number : *request.rows) copy(number * row, row);
}

ParameterTable::ParameterTable(TableSettings settings)
    : settings_(std::move(settings)),
      random_(settings_.seed),
      ranks_(static_cast<size_t>(settings_.world_size)) {
  thread_ = std::thread([this] { Loop(); });
}

ParameterTable::~ParameterTable() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Status ParameterTable::Register(int rank, std::span<const ServedBucket> buckets,
                                Optimizer& optimizer) {
  const Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  if (std::exchange(optimizer_, optimizer_ ? optimizer_ : &optimizer) != nullptr) {
    ENGINE_CHECK(buckets.size() == buckets_.size(), "ranks register different buckets");
    return {};
  }
  for (const ServedBucket& served : buckets) {
    Bucket bucket{.count = served.count,
                  .row = served.row,
                  .spans = {served.spans.begin(), served.spans.end()},
                  .value = std::vector<float>(static_cast<size_t>(served.count))};
    bucket.states.assign(static_cast<size_t>(optimizer.traits().state_count), bucket.value);
    buckets_.emplace(served.key, std::move(bucket));
  }
  return {};
}

std::vector<float>& ParameterTable::Array(uint64_t key, int32_t state) {
  Bucket& bucket = buckets_.at(key);
  return state < 0 ? bucket.value : bucket.states.at(static_cast<size_t>(state));
}

Status ParameterTable::Store(int rank, uint64_t key, int32_t state, const float* data) {
  const Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  std::vector<float>& array = Array(key, state);
  std::copy_n(data, array.size(), array.data());
  if (state < 0) buckets_.at(key).stored = true;
  changed_.notify_all();
  return {};
}

Status ParameterTable::Load(int rank, uint64_t key, int32_t state, float* data,
                            int64_t timeout_ms) {
  Lock lock(mutex_);
  const uint64_t step = settings_.mode == UpdateMode::kSync ? At(rank).step.step : 0;
  const bool came = changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return !At(rank).ended.ok() || IsReady(rank, buckets_.at(key), step);
  });
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  if (!came) return Status::Error(StatusCode::kTimeout, "a bucket has not got its values");
  const std::vector<float>& array = Array(key, state);
  std::copy_n(array.data(), array.size(), data);
  return {};
}

Status ParameterTable::LastStep(int rank, uint64_t* step) {
  const Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  *step = buckets_.empty() ? 0 : UINT64_MAX;
  for (auto& [key, bucket] : buckets_) *step = std::min(*step, bucket.pushed[rank]);
  return {};
}

void ParameterTable::SelectRows(int rank, uint64_t key, std::span<const int32_t> rows) {
  const Lock lock(mutex_);
  At(rank).rows[key] = rows;
}

Status ParameterTable::BeginStep(int rank, const ServedStep& step) {
  const Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  At(rank).step = step;
  if (first_step_ == 0) first_step_ = step.step;
  return {};
}

Status ParameterTable::Submit(int rank, const Transfer& transfer, Work** out) {
  const Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  ENGINE_CHECK(transfer.count == buckets_.at(transfer.key).count, "a transfer of another size");
  const auto now = Clock::now();
  std::uniform_int_distribution<int64_t> delay_us(0, settings_.max_delay_us);
  works_.emplace_back();
  std::optional<std::span<const int32_t>> rows;
  if (const auto selected = At(rank).rows.extract(transfer.key)) rows = selected.mapped();
  requests_.push_back({.rank = rank,
                       .transfer = transfer,
                       .rows = rows,
                       .step = At(rank).step,
                       .work = &works_.back(),
                       .due = now + std::chrono::microseconds(delay_us(random_)),
                       .deadline = now + std::chrono::milliseconds(transfer.timeout_ms)});
  *out = &works_.back();
  changed_.notify_all();
  return {};
}

void ParameterTable::End(int rank, const Status& reason) {
  std::vector<HubWork*> works;
  {
    const Lock lock(mutex_);
    if (!At(rank).ended.ok()) return;
    At(rank).ended = reason;
    std::erase_if(requests_, [&](const Request& request) {
      if (request.rank == rank) works.push_back(request.work);
      return request.rank == rank;
    });
    changed_.notify_all();
  }
  for (HubWork* work : works) work->End(reason);
}

void ParameterTable::Drain() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

// The last step that counts for `rank`: of one that has not pushed, the one before the run.
uint64_t ParameterTable::Progress(int rank, const Bucket& bucket) const {
  const auto found = bucket.pushed.find(rank);
  if (found != bucket.pushed.end() && found->second > 0) return found->second;
  return first_step_ == 0 ? 0 : first_step_ - 1;
}

// Whether a pull of `step` may be answered.
bool ParameterTable::IsReady(int rank, const Bucket& bucket, uint64_t step) const {
  if (!bucket.stored) return false;
  if (settings_.mode == UpdateMode::kSync) return bucket.updated >= step;
  if (step == 0) return true;
  if (Progress(rank, bucket) < step) return false;
  if (settings_.mode == UpdateMode::kAsync) return true;
  for (int other = 0; other < settings_.world_size; ++other) {
    const bool behind = Progress(other, bucket) + static_cast<uint64_t>(settings_.staleness) < step;
    if (behind && ranks_[static_cast<size_t>(other)].ended.ok()) return false;
  }
  return true;
}

void ParameterTable::Loop() {
  Lock lock(mutex_);
  while (!stop_) {
    const auto now = Clock::now();
    auto wake = now + std::chrono::hours(1);
    std::vector<std::pair<Request, Status>> ended;
    for (auto request = requests_.begin(); request != requests_.end();) {
      if (const auto status = Try(*request, now)) {
        ended.emplace_back(*request, *status);
        request = requests_.erase(request);
        continue;
      }
      wake = std::min(wake, request->due > now ? request->due : request->deadline);
      ++request;
    }
    if (ended.empty()) {
      changed_.wait_until(lock, wake);
      continue;
    }
    busy_ = true;
    lock.unlock();
    for (auto& [request, status] : ended) {
      if (!status.ok()) {
        End(request.rank, status);
        if (settings_.on_failure) settings_.on_failure(request.rank, status);
      }
      request.work->End(status);
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();  // also to those who Load
  }
}

// How the request ends; nothing while it does not.
std::optional<Status> ParameterTable::Try(const Request& request, Clock::time_point now) {
  if (request.due > now) return std::nullopt;
  const Transfer& transfer = request.transfer;
  Bucket& bucket = buckets_.at(transfer.key);
  if (transfer.kind == TransferKind::kPush && bucket.stored) return Apply(request, bucket);
  if (transfer.kind == TransferKind::kPull && IsReady(request.rank, bucket, request.step.step)) {
    auto* const data = static_cast<float*>(transfer.recv);
    ForEachPart(request, [&](int64_t at, int64_t count) {
      std::copy_n(bucket.value.data() + at, count, data + at);
    });
    return Status();
  }
  if (now < request.deadline) return std::nullopt;
  return Status::Error(StatusCode::kTimeout, "%s of bucket %llu was not done in time",
                       Name(transfer.kind), static_cast<unsigned long long>(transfer.key));
}

// A push, and the update that it makes, or completes.
Status ParameterTable::Apply(const Request& request, Bucket& bucket) {
  const auto* const data = static_cast<const float*>(request.transfer.send);
  Push push{.gradient = std::vector<float>(static_cast<size_t>(bucket.count)),
            .step = request.step};
  ForEachPart(request, [&](int64_t at, int64_t count) {
    std::copy_n(data + at, count, push.gradient.data() + at);
  });
  const uint64_t step = bucket.pushed[request.rank] = request.step.step;
  if (settings_.mode != UpdateMode::kSync) return Update(bucket, push);
  std::map<int, Push>& all = bucket.gathered[step];
  all.emplace(request.rank, std::move(push));
  if (all.size() < ranks_.size()) return {};
  Push sum = std::move(all.at(0));
  for (int rank = 1; rank < settings_.world_size; ++rank) {
    const Push& other = all.at(rank);
    for (size_t i = 0; i < sum.gradient.size(); ++i) sum.gradient[i] += other.gradient[i];
    sum.step.weight += other.step.weight;
  }
  bucket.gathered.erase(step);
  return Update(bucket, sum);
}

Status ParameterTable::Update(Bucket& bucket, const Push& push) {
  const bool sync = settings_.mode == UpdateMode::kSync;
  bucket.updated = sync ? push.step.step : std::max(bucket.updated + 1, push.step.step);
  int64_t offset = 0;
  for (const ServedSpan& span : bucket.spans) {
    UpdateCall call{.value = bucket.value.data() + offset,
                    .gradient = push.gradient.data() + offset,
                    .count = span.count,
                    .gradient_scale = 1 / std::max(push.step.weight, 1.0f),
                    .learning_rate = push.step.learning_rate,
                    .weight_decay_scale = span.weight_decay_scale,
                    .step = bucket.updated};
    for (size_t i = 0; i < bucket.states.size(); ++i) {
      call.states[i] = bucket.states[i].data() + offset;
    }
    ENGINE_RETURN_IF_ERROR(optimizer_->Update(call));
    offset += span.count;
  }
  return {};
}

}  // namespace engine::test
