// What gloo_pipeline runs beside the transfers: a thread that computes, and one that looks into the
// kernel.
#pragma once

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <thread>
#include <vector>

namespace engine::bench {

// A thread that multiplies without end, and how far it got.
class BusyThread {
 public:
  BusyThread() : thread_([this] { Loop(); }) {}
  ~BusyThread() {
    stop_ = true;
    thread_.join();
  }
  double rounds() const { return static_cast<double>(rounds_.load()); }
  double cpu_seconds() const {
    timespec time{};
    clockid_t clock = 0;
    pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock);
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  // 64 KiB, which stay in the second-level cache of the core unless transfers push them out.
  void Loop() {
    std::vector<float> values(16 << 10, 1.0f);
    while (!stop_) {
      for (float& value : values) value = value * 0.999f + 0.001f;
      ++rounds_;
    }
    if (values[0] < 0) std::puts("never");  // the values are used
  }

  std::atomic<bool> stop_{false};
  std::atomic<int64_t> rounds_{0};
  std::thread thread_;
};

// What the kernel holds of each connection, again and again.
class Probe {
 public:
  Probe() {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::atoi(entry.path().filename().c_str());
      sockaddr_storage name{};
      socklen_t length = sizeof(name);
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0) fds_.push_back(fd);
    }
    thread_ = std::thread([this] { Loop(); });
  }
  std::vector<double> Stop() {
    stop_ = true;
    thread_.join();
    std::sort(samples_.begin(), samples_.end());
    return std::move(samples_);
  }

 private:
  void Loop() {
    while (!stop_) {
      int most = 0;
      for (const int fd : fds_) {
        int unsent = 0;
        if (ioctl(fd, SIOCOUTQ, &unsent) == 0) most = std::max(most, unsent);
      }
      samples_.push_back(most);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }

  std::vector<int> fds_;
  std::vector<double> samples_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};
}  // namespace engine::bench
