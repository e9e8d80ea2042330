#include "library.h"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // Open MPI
#endif

#include "kit/thread.h"

namespace engine::mpi {
namespace {

bool TakesCuda() noexcept {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH
  int takes = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &takes) == MPI_SUCCESS && takes != 0;
#else
  return false;
#endif
}

}  // namespace

// The one static object of the plugin, as MPI is one of the process. A rank that fails ends without
// its destructor (_exit), since MPI_Finalize waits for all processes.
Result<Library*> Library::Start(bool one_thread) {
  static Library library(one_thread);
  if (library.was_started_ == 0 || library.level_ == MPI_THREAD_MULTIPLE) return &library;
  return Status::Error(StatusCode::kConfig,
                       "this program has started MPI without MPI_THREAD_MULTIPLE, so that a plugin "
                       "cannot call it: start it with MPI_Init_thread");
}

// On a thread of its own even where any thread may call: what MPI provides is known too late.
Library::Library(bool one_thread) {
  MPI_Initialized(&was_started_);
  thread_ = kit::StartThread("mpi_main", [this] { Loop(); });
  const auto start = [&] {
    const int wanted = one_thread ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE;
    int provided = 0;
    if (was_started_ == 0) MPI_Init_thread(nullptr, nullptr, wanted, &provided);
    MPI_Query_thread(&provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    takes_cuda_ = TakesCuda();
    return provided;
  };
  level_ = Call(start);
}

Library::~Library() {
  if (was_started_ == 0) CallThere([](const void*) { return MPI_Finalize(); }, nullptr);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

// With one tag: a process makes its communicators one after another.
MPI_Comm Library::MakeGroup(const std::vector<int>& ranks) {
  MPI_Comm made = MPI_COMM_NULL;
  Call([&] {
    MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group);
    const int error = MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &made);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return error == MPI_SUCCESS ? MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN) : error;
  });
  return made;
}

// What waits for a call holds callers_, so there is one task at most.
int Library::CallThere(Task task, const void* argument) {
  const std::lock_guard caller(callers_);
  std::unique_lock lock(mutex_);
  task_ = task;
  argument_ = argument;
  changed_.notify_all();
  changed_.wait(lock, [this] { return task_ == nullptr; });
  return result_;
}

void Library::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return task_ != nullptr || stop_; });
    if (task_ == nullptr) return;
    result_ = task_(argument_);
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace engine::mpi
