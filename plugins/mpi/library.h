// MPI in this process: it starts once and ends with the process, whatever communicators come and go.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/status.h"

namespace engine::mpi {

class Library {
 public:
  // Starts MPI where nobody has, and then waits for all processes of the launcher. `one_thread`:
  // asks for MPI_THREAD_FUNNELED. kConfig: the program itself has started MPI, for fewer threads.
  static Result<Library*> Start(bool one_thread);
  ~Library();

  // Runs `body`, which calls MPI and returns its error code: here where MPI takes calls from all
  // threads, else on the thread that started it. [any-thread]
  template <typename Body>
  int Call(const Body& body) {
    if (level_ == MPI_THREAD_MULTIPLE) return body();
    return CallThere([](const void* of) { return (*static_cast<const Body*>(of))(); }, &body);
  }

  // Of this process in MPI_COMM_WORLD.
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // Whether it moves memory of CUDA devices.
  bool takes_cuda() const noexcept { return takes_cuda_; }
  // A communicator of these ranks of MPI_COMM_WORLD, in this order. Collective over them, without a
  // deadline: they are known to be there. It returns errors.
  MPI_Comm MakeGroup(const std::vector<int>& ranks);

 private:
  using Task = int (*)(const void* argument);

  explicit Library(bool one_thread);
  int CallThere(Task task, const void* argument);
  void Loop();

  int level_ = MPI_THREAD_SINGLE, rank_ = 0, size_ = 0;  // constant once MPI has started
  bool takes_cuda_ = false;
  int was_started_ = 0;  // by the program
  std::mutex callers_;   // of CallThere
  std::mutex mutex_;
  std::condition_variable changed_;
  Task task_ = nullptr;  // these four guarded by mutex_
  const void* argument_ = nullptr;
  int result_ = 0;
  bool stop_ = false;
  std::thread thread_;  // MPI's main thread, which also ends it
};

}  // namespace engine::mpi
